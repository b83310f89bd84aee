"""Roles are added to a policy; nothing that others wrote into it is lost."""

from typing import Any

import pytest
from google.api_core.exceptions import Aborted
from google.iam.v1.policy_pb2 import Policy

from backends.google.iam import add_member, binding, has_role
from backends.lifecycle import advance
from core.errors import ConcurrentChange

pytestmark = pytest.mark.anyio

ME, OTHER = "serviceAccount:me@p", "user:other@example.com"
READER, WRITER = "roles/reader", "roles/writer"


def policy() -> Policy:
    """Others' bindings, one with a condition of the role that is to be granted."""
    made = Policy(version=3, etag=b"one")
    made.bindings.add(role=READER, members=[OTHER])
    conditional = made.bindings.add(role=WRITER, members=[ME, OTHER])
    conditional.condition.expression = "request.time < timestamp('2027-01-01T00:00:00Z')"
    return made


class Kept:
    """A policy that may be changed by somebody else just before it is written."""

    def __init__(self, conflicts: int = 0) -> None:
        self.policy = policy()
        self.conflicts = conflicts
        self.written = 0

    async def opened(self) -> "Kept":
        """Be the client of it."""
        return self

    async def get_iam_policy(self, **_: Any) -> Policy:
        """Give it as it is now."""
        copy = Policy()
        copy.CopyFrom(self.policy)
        return copy

    async def set_iam_policy(self, request: dict[str, Any], **_: Any) -> None:
        """Take it if its etag is that which is kept."""
        wanted = request["policy"]
        if self.conflicts:
            self.conflicts -= 1
            self.policy.bindings.add(role=f"roles/new{self.conflicts}", members=[OTHER])
            raise Aborted("There were concurrent policy changes.")
        assert wanted.etag == self.policy.etag
        self.policy = wanted
        self.written += 1


async def given(kept: Kept, *roles: str) -> None:
    wanted = binding(kept.opened, "a", roles, "me@p", what="grant it", name="a", title="it")
    assert await advance((wanted,), seconds=1) is None


async def test_a_role_is_added_beside_what_others_have() -> None:
    kept = Kept()
    await given(kept, READER)
    assert has_role(kept.policy, READER, ME)
    assert has_role(kept.policy, READER, OTHER)
    assert kept.policy.version == 3


async def test_a_role_under_a_condition_is_not_the_role_and_stays() -> None:
    kept = Kept()
    before = kept.policy.bindings[1].SerializeToString()
    assert not has_role(kept.policy, WRITER, ME)
    await given(kept, WRITER)
    assert has_role(kept.policy, WRITER, ME)
    assert not has_role(kept.policy, WRITER, OTHER)
    assert kept.policy.bindings[1].SerializeToString() == before


async def test_roles_that_are_held_already_are_not_written_again() -> None:
    kept = Kept()
    await given(kept, READER, WRITER)
    await given(kept, READER, WRITER)
    assert kept.written == 1


async def test_a_policy_that_somebody_changed_meanwhile_is_read_anew() -> None:
    kept = Kept(conflicts=2)
    await given(kept, READER)
    assert has_role(kept.policy, READER, ME)
    assert has_role(kept.policy, "roles/new0", OTHER)
    assert has_role(kept.policy, "roles/new1", OTHER)


async def test_a_policy_that_is_changed_each_time_is_given_up() -> None:
    kept = Kept(conflicts=99)
    with pytest.raises(ConcurrentChange):
        await given(kept, READER)
    assert kept.conflicts == 96


def test_a_policy_of_an_old_version_is_written_as_one_that_has_conditions() -> None:
    old = Policy(version=1)
    add_member(old, [READER], ME)
    assert old.version == 3
