"""Where the seconds of public boots went."""

import pytest

from tests.measure_boots import Boot, boots

BOOTS = boots()


@pytest.mark.parametrize("boot", BOOTS, ids=lambda one: one.source.split("github.com/")[-1])
def test_the_phases_of_a_public_boot_add_up_to_its_length(boot: Boot) -> None:
    """Within the two seconds that stamps without fractions allow."""
    assert boot.is_whole


def test_most_seconds_of_public_boots_are_where_a_person_has_them() -> None:
    """Of those that were held back as of the others."""
    for held in (False, True):
        chosen = [boot for boot in BOOTS if boot.held is held]
        right = sum(boot.right_seconds for boot in chosen)
        assert right / sum(boot.seconds for boot in chosen) > 0.9
