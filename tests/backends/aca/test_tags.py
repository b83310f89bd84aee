"""What was asked for is kept in tags, and read back."""

import string
from datetime import UTC, datetime

import pytest
from azure.mgmt.appcontainers.models import ContainerApp
from hypothesis import given, strategies

from backends.aca.app import expires_in, fingerprint_in, spec_in, tags_of, target_in
from backends.aca.site import is_ours
from core.errors import InvalidArgument
from tests.backends.aca.planned import spec

_TEXT = strategies.text(alphabet=string.printable + "äß漢🙂", max_size=300)


def _tagged(tags: dict[str, str] | None) -> ContainerApp:
    return ContainerApp(location="x", tags=tags)


@given(strategies.lists(_TEXT, max_size=6))
def test_every_spec_comes_back_as_it_was(words: list[str]) -> None:
    """Whatever engine_args hold: blanks at the end of a part, letters beyond ASCII."""
    wanted = spec(engine_args=tuple(words))
    kept = tags_of("aca-a100", wanted)
    assert spec_in(kept) == wanted
    assert all(len(value) <= 256 for value in kept.values())
    assert all(value.isascii() and " " not in value for value in kept.values())
    assert fingerprint_in(_tagged(kept)) == wanted.fingerprint
    assert target_in(_tagged(kept)) == "aca-a100"
    assert is_ours(_tagged(kept))


def test_what_a_longer_spec_left_behind_does_no_harm() -> None:
    """A merge of tags keeps the old ones: the first part says how many count."""
    long = tags_of("aca-a100", spec(engine_args=("x" * 600,)))
    short = tags_of("aca-a100", spec())
    assert len(long) > len(short)
    assert spec_in({**long, **short}) == spec()


def test_a_spec_that_tags_cannot_hold_is_refused() -> None:
    """Azure has fifty tags for each resource, and some are needed for more."""
    assert len(tags_of("aca-a100", spec(engine_args=("x" * 9000,)))) < 50
    with pytest.raises(InvalidArgument, match="more than an app's tags hold"):
        tags_of("aca-a100", spec(engine_args=("x" * 11_000,)))


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
    assert spec_in(held) is None
    assert not is_ours(_tagged(held))


def test_the_case_of_a_tags_name_does_not_matter() -> None:
    """Azure takes both for the same tag."""
    kept = {name.upper(): value for name, value in tags_of("aca-t4", spec()).items()}
    assert spec_in(kept) == spec()
    assert expires_in(_tagged({"VLLM-devops-EXPIRES": "1700000000"})) == datetime.fromtimestamp(
        1_700_000_000, UTC
    )
    assert expires_in(_tagged({"vllm-devops-expires": "soon"})) is None
