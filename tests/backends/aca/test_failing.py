"""What Azure refuses is told with what helps, whatever status it comes with."""

import pytest

from backends.aca.site import classed
from core.errors import CloudRefused, PermissionDenied

_RULES = "Client address is not authorized and caller is not a trusted service."
_CLOSED = "Public network access is disabled and request is not from a trusted service."


@pytest.mark.parametrize(
    ("code", "status", "words", "fix"),
    [
        ("RequestDisallowedByPolicy", 403, "Shared keys are disallowed.", "AZURE_STORAGE_ACCOUNT"),
        ("ScopeLocked", 409, "The scope cannot perform delete.", "az lock list"),
        ("ReadOnlyDisabledSubscription", 409, "It is marked as read only.", "payment"),
        ("Forbidden", 403, _RULES, "az keyvault network-rule add"),
        ("Forbidden", 403, _CLOSED, "AZURE_KEYVAULT_NAME"),
    ],
)
def test_what_neither_a_role_nor_time_puts_right_is_not_tried_again(
    code: str, status: int, words: str, fix: str
) -> None:
    """By their status alone they are lacking roles, or changes that end by themselves."""
    error = classed(code, words, "make it", status=status)
    assert type(error) is CloudRefused
    assert fix in error.fix
    assert not error.retryable


def test_a_vault_that_lacks_a_role_still_says_so() -> None:
    """The code is the same as where its network keeps somebody out."""
    words = "Caller is not authorized to perform action on resource."
    assert type(classed("Forbidden", words, "read it", status=403)) is PermissionDenied
