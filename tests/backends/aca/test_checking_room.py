"""A share that is full is found out before a GPU waits for a download to it."""

import pytest
from azure.mgmt.storage.models import FileShare, FileShareProperties

from backends.aca.storage import has_room
from tests.backends.aca.planned import GIB, site


def share(quota_gib: int, used: int) -> FileShare:
    """One as Azure shows it; what is used is told, never sent."""
    properties = FileShareProperties(share_quota=quota_gib)
    properties["shareUsageBytes"] = used
    return FileShare(file_share_properties=properties)


@pytest.mark.parametrize(
    ("quota", "used", "wanted", "passed"),
    [(100, 0, 58, True), (100, 58, 42, True), (100, 58, 58, None), (50, 0, 58, False)],
)
def test_a_model_is_held_against_what_is_free(
    quota: int, used: int, wanted: int, *, passed: bool | None
) -> None:
    """It may lie there already, but not on a share that is smaller than it."""
    answer = has_room(site(), share(quota, used * GIB), wanted * GIB)
    assert answer.passed is passed
    assert (passed is True) == (not answer.fix)
    if passed is not True:
        assert f"--quota {round((used + wanted) * 1.1 + 0.5)}" in answer.fix


def test_a_share_that_is_still_to_be_made_has_its_own_size() -> None:
    """Which is that of the rules."""
    assert has_room(site(), None, 99 * GIB).passed
    assert has_room(site(), None, 101 * GIB).passed is False
