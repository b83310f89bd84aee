"""`python -m simulators.azure --folder F [--idle-exit SECONDS]`: an Azure of one's own."""

from typing import Final

from simulators.common.lifetime import main

PACKAGES: Final = (
    "azure.keyvault.secrets",
    "azure.keyvault.secrets._generated",
    "azure.mgmt.appcontainers",
    "azure.mgmt.keyvault",
    "azure.mgmt.loganalytics",
    "azure.mgmt.resource.resources",
    "azure.mgmt.storage",
)
"""Of the SDK: only their models are needed."""

if __name__ == "__main__":
    main("azure", PACKAGES)
