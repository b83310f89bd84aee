"""What a person is told of an endpoint that signs for itself."""

import shlex

import pytest
from pydantic import SecretStr

from core.headers import KEY_HEADER
from core.records import Access
from operations.watching.reading import curl

ACCESS = Access(
    base_url="https://203.0.113.9:8000",
    api_key=SecretStr("key"),
    certificate="PEM",
    certificate_command="gcloud logging read 'log_id(\"vllm-devops\")' --project=p",
    header_commands={KEY_HEADER: "gcloud secrets versions access latest --secret=s"},
    protection="",
)


def test_curl_is_told_which_certificate_to_trust() -> None:
    """It is fetched from the log before, into a file of the deployment's name."""
    fetched, _, asked = curl("gemma", ACCESS).partition(" && ")
    assert fetched == f"{ACCESS.certificate_command} > gemma.pem"
    words = shlex.split(asked)
    assert words[words.index("--cacert") + 1] == "gemma.pem"
    assert words[-1] == "https://203.0.113.9:8000/v1/models"
    assert "key" not in asked.split()


@pytest.mark.parametrize("switch", ["-k", "--insecure"])
def test_nothing_is_ever_said_to_go_unverified(switch: str) -> None:
    """A key that is shown to anybody is no key."""
    assert switch not in shlex.split(curl("gemma", ACCESS))


def test_an_ordinary_endpoint_is_asked_as_before() -> None:
    """Authorities vouch for it, or it is this machine."""
    ordinary = ACCESS.model_copy(update={"certificate": None, "certificate_command": ""})
    assert curl("gemma", ordinary).startswith("curl -sS -H ")
