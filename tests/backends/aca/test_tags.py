"""What was asked for is kept in tags, and read back."""

import string

import pytest
from hypothesis import given, strategies

from backends.aca import resources
from core.errors import InvalidArgument
from tests.backends.aca.planned import spec

_TEXT = strategies.text(alphabet=string.printable + "äß漢🙂", max_size=300)


@given(strategies.lists(_TEXT, max_size=6))
def test_every_spec_comes_back_as_it_was(words: list[str]) -> None:
    """Whatever engine_args hold: blanks at the end of a part, letters beyond ASCII."""
    wanted = spec(engine_args=tuple(words))
    kept = resources.tags_of("aca-a100", wanted)
    assert resources.spec_from_tags(kept) == wanted
    assert all(len(value) <= 256 for value in kept.values())
    assert all(value.isascii() and " " not in value for value in kept.values())
    assert resources.fingerprint_in(kept) == wanted.fingerprint
    assert resources.target_in(kept) == "aca-a100"
    assert resources.is_ours(kept)


def test_what_a_longer_spec_left_behind_does_no_harm() -> None:
    """A merge of tags keeps the old ones: the first part says how many count."""
    long = resources.tags_of("aca-a100", spec(engine_args=("x" * 600,)))
    short = resources.tags_of("aca-a100", spec())
    assert len(long) > len(short)
    assert resources.spec_from_tags({**long, **short}) == spec()


def test_a_spec_that_tags_cannot_hold_is_refused() -> None:
    """Azure has fifty tags for each resource, and some are needed for more."""
    assert len(resources.tags_of("aca-a100", spec(engine_args=("x" * 9000,)))) < 50
    with pytest.raises(InvalidArgument, match="more than an app's tags hold"):
        resources.tags_of("aca-a100", spec(engine_args=("x" * 11_000,)))


@pytest.mark.parametrize(
    "held",
    [
        None,
        {},
        {"vllm-devops-json-0": "{}"},
        {"vllm-devops-json-0": "x:{}"},
        {"vllm-devops-json-0": '1:{"name":"gemma"}'},
        {"vllm-devops-json-0": '2:{"name":"gemma",'},
    ],
)
def test_tags_that_somebody_changed_tell_nothing(held: dict[str, str] | None) -> None:
    """A broken tag is no spec, and no crash."""
    assert resources.spec_from_tags(held) is None
    assert not resources.is_ours(held)


def test_the_case_of_a_tags_name_does_not_matter() -> None:
    """Azure takes both for the same tag."""
    kept = {name.upper(): value for name, value in resources.tags_of("aca-t4", spec()).items()}
    assert resources.spec_from_tags(kept) == spec()
    assert resources.expires_in({"VLLM-devops-EXPIRES": "1700000000"}) == 1_700_000_000
    assert resources.expires_in({"vllm-devops-expires": "soon"}) is None
