"""Who calls, and what policies allow: the owner of a project, or an account with its grants."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from google.iam.v1.policy_pb2 import Policy

from core.environment import read_toml

_ROLES: Final = read_toml(Path(__file__).with_name("catalog.toml"))["roles"]
"""What those that are granted here allow, as far as it is asked for."""
EVERYBODY: Final = frozenset({"allUsers", "allAuthenticatedUsers"})
AS: Final = "x-rehearsal-as"
"""Header, or metadata of gRPC: the e-mail of the account that makes this one call."""
_ACTING: Final[ContextVar[str]] = ContextVar("acting", default="")


@contextmanager
def acting_as(email: str) -> Iterator[None]:
    """Let an account make a call; nobody in particular if empty."""
    token = _ACTING.set(email)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting() -> str:
    """Return the e-mail of the account that makes this call; empty is the usual caller."""
    return _ACTING.get()


_BELOW: Final = re.compile(r'resource\.name\.startsWith\("([^"]+)"\)')


def _holds(condition: str, resource: str) -> bool:
    """Whether a condition holds of a resource; one of another form is taken to hold of none."""
    found = _BELOW.fullmatch(condition)
    return not condition or bool(found and resource.startswith(found[1]))


def granted(
    policy: Policy, roles: Mapping[str, Any], email: str, permission: str, resource: str = ""
) -> bool:
    """Say whether a policy allows it on a resource, to an account or to everybody.

    `roles` are the project's own, by full name: one that is deleted allows nothing.
    """
    names = {f"serviceAccount:{email}", f"user:{email}", *EVERYBODY}

    def allowed(role: str) -> bool:
        own = roles.get(role)
        included = () if own is None or own.deleted else own.included_permissions
        return permission in _ROLES.get(role, included)

    return any(
        _holds(binding.condition.expression, resource)
        and bool(names.intersection(binding.members))
        and allowed(binding.role)
        for binding in policy.bindings
    )
