"""Secrets in answers."""

import string
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
