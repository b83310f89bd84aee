"""Secrets in answers."""

import string
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.redaction import MASK, redact

secrets = st.text(string.ascii_uppercase + string.digits + "$.^*+é", min_size=6, max_size=20)


@st.composite
def planted(draw: st.DrawFn) -> tuple[Any, list[str]]:
    """A nested value with secrets anywhere in it, and those secrets."""
    known = draw(st.lists(secrets, min_size=1, max_size=3))
    piece = st.sampled_from(known) | st.text(max_size=8)
    text = st.lists(piece, max_size=4).map("".join)
    leaf = text | st.integers() | st.booleans() | st.none()
    value = draw(
        st.recursive(
            leaf,
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.tuples(inner, text)
                | st.dictionaries(text, inner, max_size=4)
            ),
            max_leaves=20,
        )
    )
    return value, known


@given(planted())
def test_a_known_secret_survives_nowhere(case: tuple[Any, list[str]]) -> None:
    """Not in a text, a list, a value or a key, however deep and however often."""
    value, known = case
    said = repr(redact(value, known))
    assert not [secret for secret in known if secret in said]


@given(st.recursive(st.integers() | st.text("abc ,", max_size=5), st.lists, max_leaves=10))
def test_what_holds_no_secret_stays_as_it_is(value: Any) -> None:
    """Nothing is changed that need not be."""
    assert redact(value, ["SECRET"]) == value


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrst",
        "sk-abcdefghijklmnopqrst",
        "sk-proj-abc_DEF-ghijklmnop",
        "ya29.a0AfH6SMB-abc_def.ghijk",
        "AIzaSyA-abcdefghijklmnopqrstuvwxyz_123",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
        "ghp_" + "abcDEF1234" * 4,
        "github_pat_" + "abcDEF1234_" * 3,
        "glpat-abcdefghijklmnopqrst",
        "xoxb-1234567890-abcdefghij",
        "AKIAABCDEFGHIJKLMNOP",
        "GOCSPX-abcdefghijklmnopqrst",
        "abc8Q~" + "abcDEF.123" * 3 + "abcd",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_key_is_known_by_its_shape(secret: str) -> None:
    """Also one that this server never had in hand."""
    assert redact(f"got ({secret}), then") == f"got ({MASK}), then"


@pytest.mark.parametrize(
    ("before", "secret"),
    [
        ("Authorization: Bearer ", "abc.DEF~ghi+jkl/mno="),
        ("authorization: bearer ", "abcdefghijklmnop"),
        ("AccountName=x;AccountKey=", "abcdefghijklmnop+/=="),
        ("https://x.blob.core.windows.net/c?sv=2024&sig=", "ab%2Fcdefghijklmnop"),
        ("https://storage.googleapis.com/b/o?X-Goog-Signature=", "0123456789abcdefAB"),
        ("https://b.s3.amazonaws.com/o?X-Amz-Signature=", "0123456789abcdefAB"),
        ("https://hooks.slack.com/services/", "T0000/B0000/abcdefghijklmnop"),
        ("Endpoint=sb://x/;SharedAccessKey=", "abcdefghijklmnop+/=="),
        ("Authorization: Basic ", "dXNlcjpwYXNz"),
        ("x-api-key: ", "abcd1234efgh"),
        ("api_key=", "hunter"),
        ("db_password=", "hunter"),
        ("AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMI/K7MDENG"),
        ("access_token=", "abcd1234efgh5678"),
        ("--from-file=api-key=", "abcd1234efgh5678"),
        ("--from-literal=api-key=", "/dev/stdin/abcd1234"),
    ],
)
def test_a_credential_is_known_by_what_stands_before_it(before: str, secret: str) -> None:
    """Headers, connection strings and signed addresses keep their beginning."""
    assert redact(f"{before}{secret} end") == f"{before}{MASK} end"


@pytest.mark.parametrize(
    "text",
    [
        "task-identification-number-1234567890",
        "hf_home",
        "sk-short",
        "the bearer of bad news",
        "google/gemma-4-E2B-it",
        "max_tokens=4096, prompt_tokens: 12345678",
        "VLLM_API_KEY=secretref:vllm-api-key",
        "HF_TOKEN=hf-token:latest",
        "api_key=None, password=null",
        "password: required for login",
        "Authorization: none",
        "pass --api-key $VLLM_API_KEY",
        "eos_token='<|im_end|>'",
        "http://127.0.0.1:8000/v1 @ 5",
        "an akia tree",
        "kubectl create secret generic x --from-file=api-key=/dev/stdin",
        "kubectl create secret generic x --from-file=hf-token=./keys/hub",
    ],
)
def test_ordinary_words_are_not_taken_for_keys(text: str) -> None:
    """A mask where nothing is secret would hide what a person needs."""
    assert redact(text) == text


def test_the_longest_of_two_secrets_is_masked_first() -> None:
    """A secret that begins another one does not leave the other's end behind."""
    assert redact("ABCDEFGH-1234", ["ABCDEFGH", "ABCDEFGH-1234"]) == MASK


def test_an_empty_secret_is_none() -> None:
    """A setting that is there but empty masks nothing."""
    assert redact("abc", ["", ""]) == "abc"


def test_a_login_in_an_address_loses_its_password() -> None:
    """Who and where stay."""
    assert redact("postgres://bob:pa:ss@db/x") == f"postgres://bob:{MASK}@db/x"


def test_a_private_key_that_is_cut_off_takes_the_rest_along() -> None:
    """Without its end, nobody knows where it ended."""
    assert redact("so: -----BEGIN PRIVATE KEY-----\nMIIE abc") == f"so: {MASK}"


@given(st.text(max_size=200))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    """Answers pass through here more than once."""
    text = f"password={text} token: '{text}'"
    once = redact(text)
    assert redact(once) == once


KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"


def test_a_private_key_that_a_log_tears_into_lines_is_masked_line_by_line() -> None:
    """Each line of it comes as a text of its own."""
    assert redact([KEY_LINE, f"  {KEY_LINE}\n"]) == [MASK, MASK]


@pytest.mark.parametrize(
    "text",
    [
        f"-----BEGIN CERTIFICATE-----\n{KEY_LINE}\n-----END CERTIFICATE-----\n",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "A" * 64,
        f"{KEY_LINE} is how one begins",
    ],
)
def test_what_only_resembles_a_line_of_a_key_stays(text: str) -> None:
    """A certificate is for everybody, a digest is no key."""
    assert redact(text) == text


@pytest.mark.parametrize("text", ["token=" * 20_000 + ":latest", "eyJ-" * 30_000])
def test_no_line_takes_long(text: str) -> None:
    """Whoever writes into a log may repeat what a secret begins with: 120 kB in a second."""
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "said",
    [
        "vllm serve m --api-key SECRETVALUE1 --seed 1",
        "--hf_token SECRETVALUE1",
        ["--api-key SECRETVALUE1"],
        ["--seed", "1", "--api-key", "SECRETVALUE1"],
        ["--api_k", "SECRETVALUE1"],
        {"engine_args": ["--hf-token", "SECRETVALUE1"]},
    ],
)
def test_what_follows_the_flag_of_a_secret_is_masked(said: object) -> None:
    """As one word or as the next one of a list."""
    assert "SECRETVALUE1" not in repr(redact(said))


@pytest.mark.parametrize(
    "said", ["[--api-key API_KEY [API_KEY ...]]", "--api-key $KEY", ["--api-key", "$KEY"]]
)
def test_what_names_a_secret_elsewhere_stays(said: object) -> None:
    """A usage line, or a variable."""
    assert redact(said) == said
