"""What a person is told of an endpoint that signs for itself."""

import shlex

import pytest
from pydantic import SecretStr

from core.address import IDENTITY_HEADER, KEY_HEADER
from core.records import Access
from core.redaction import redact
from operations.readings import curl, openai_client

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
    fetched, _, asked = curl("gemma", ACCESS, "/v1/models").partition(" && ")
    assert fetched == f"{ACCESS.certificate_command} > gemma.pem"
    words = shlex.split(asked)
    assert words[words.index("--cacert") + 1] == "gemma.pem"
    assert words[-1] == "https://203.0.113.9:8000/v1/models"
    assert "key" not in asked.split()


@pytest.mark.parametrize("switch", ["-k", "--insecure"])
def test_nothing_is_ever_said_to_go_unverified(switch: str) -> None:
    assert switch not in shlex.split(curl("gemma", ACCESS, "/v1/models"))


def test_python_is_told_too() -> None:
    """By the variable that its TLS reads; no masking of secrets breaks what is printed."""
    text = openai_client("gemma", ACCESS, "google/gemma-4-E2B-it")
    assert text
    assert redact(text, frozenset()) == text
    assert f"{ACCESS.certificate_command} > gemma.pem" in text.splitlines()[0]
    assert "SSL_CERT_FILE=gemma.pem" in text.splitlines()[1]


def test_an_ordinary_endpoint_is_asked_as_before() -> None:
    ordinary = ACCESS.model_copy(update={"certificate": None, "certificate_command": ""})
    assert curl("gemma", ordinary, "/v1/models").startswith("curl -sS -H ")


def test_a_question_shows_whatever_a_platform_wants() -> None:
    """Key, identity and certificate by commands that no masking of secrets breaks."""
    identity = {IDENTITY_HEADER: "gcloud auth print-identity-token"}
    access = ACCESS.model_copy(update={"header_commands": {**ACCESS.header_commands, **identity}})
    text = curl("gemma", access, "/v1/chat/completions", body='{"it\'s": 1}')
    assert redact(text, frozenset()) == text
    words = shlex.split(text.partition(" && ")[2].replace('"', ""))
    assert words[words.index("-d") + 1] == "{it's: 1}"
    assert identity[IDENTITY_HEADER] in text
