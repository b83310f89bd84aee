"""Nobody is logged in: what Azure's library says of that, in the one line that helps."""

import pytest
from azure.core.exceptions import ClientAuthenticationError

from backends.aca.site import translated
from core.errors import NotAuthenticated

CHAIN = """DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: EnvironmentCredential authentication unavailable.
Visit https://aka.ms/azsdk/python/identity/environmentcredential/troubleshoot to see why.
\tManagedIdentityCredential: no response from the IMDS endpoint.
\tAzureCliCredential: Azure CLI not found on path
\tAzurePowerShellCredential: PowerShell is not installed
To mitigate this issue, please refer to the troubleshooting guidelines."""
SECRET = "AADSTS7000215: Invalid client secret provided."
SAID = {
    "by az": (CHAIN, "AzureCliCredential: Azure CLI not found on path"),
    "no list": (SECRET, SECRET),
}


@pytest.mark.parametrize(("said", "cause"), SAID.values(), ids=SAID)
def test_the_cause_is_the_way_in_that_a_person_takes(said: str, cause: str) -> None:
    with pytest.raises(NotAuthenticated) as caught, translated("list the apps"):
        raise ClientAuthenticationError(said)
    assert caught.value.cause == cause
