"""What things are called on Google's side; one name gives every id."""

from typing import Final

SPEC_METADATA: Final = "vllm-devops-spec"
"""The VM's metadata that holds what was asked for, as JSON."""
ACCOUNT_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
"""With less the VM could not read its secrets."""
LOG: Final = "vllm-devops"
"""The log that the startup script writes to, and the container's output with it."""
SERIAL_PORT: Final = 1


def vm_id(name: str) -> str:
    """Name queued resource, node or instance, network tag and firewall rule of a deployment.

    >>> vm_id("gemma")
    'vllm-devops-gemma'
    """
    return f"vllm-devops-{name}"


def key_secret(name: str) -> str:
    """Name the secret with a deployment's key: Cloud Run may serve another of that name."""
    return f"vllm-devops-tpu-{name}-api-key"


def region_of(zone: str) -> str:
    """Give a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]
