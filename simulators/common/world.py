"""What every simulated cloud keeps: its customers, their controls, what goes wrong, who asks."""

import contextlib
import fnmatch
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import anyio
import jwt
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.records import Record

MOST_KEPT: Final = 5000
"""Lines, calls and needed permissions of a customer."""
_ALGORITHM: Final = "HS256"


class Fault(Record):
    """Something that goes wrong with the next calls of a method."""

    method: str
    """As calls are counted; `*` stands for any letters."""
    message: str = ""
    times: int = 1
    """How many calls; -1 is all."""
    when: Literal["before", "after", "hang", "hang-after"] = "before"
    """Before it took effect, after, or no answer at all (without or with effect)."""


class Knobs(Record):
    """The controls that customers of every cloud have, beside `faults`; a fresh one's defaults."""

    prepared: bool = False
    """As after `set_up` of both targets, with the names that it gives."""
    boot_seconds: float = Field(default=1.0, ge=0)
    """How long an engine boots."""
    engine_environment: dict[str, str] = {}
    """More settings of the simulated engine, such as SIMULATED_ENGINE_FAIL."""
    probe_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a probe's period."""
    identity: str = ""
    """Whoever calls; empty is an account of the customer's own."""
    token_seconds: float = Field(default=3600, gt=0)
    """How long a token is valid."""


class Kept(BaseModel):
    """Something that is written down; a key that is not known makes it an earlier version's."""

    model_config = ConfigDict(extra="forbid")


class Customer(Kept):
    """A project or a subscription."""

    id: str
    knobs: Any
    calls: list[str] = []
    """Methods called, newest last."""
    needed: list[str] = []
    """What the caller had to be allowed for those calls, newest last."""

    def called(self, method: str) -> None:
        """Remember a call."""
        self.calls.append(method)
        del self.calls[:-MOST_KEPT]

    def need(self, permission: str) -> None:
        """Remember a permission that a call took."""
        self.needed.append(permission)
        del self.needed[:-MOST_KEPT]


def take_fault(customer: Customer, method: str) -> Any:
    """Return the first fault that a call of `method` meets, and count it; None is none."""
    faults = list(customer.knobs.faults)
    for place, fault in enumerate(faults):
        if fault.times and fnmatch.fnmatchcase(method.lower(), fault.method.lower()):
            faults[place] = fault.model_copy(update={"times": max(-1, fault.times - 1)})
            customer.knobs = customer.knobs.model_copy(update={"faults": tuple(faults)})
            return fault
    return None


@asynccontextmanager
async def meeting_faults(
    customer: Customer, method: str, refuse: Callable[[Any], Exception]
) -> AsyncIterator[None]:
    """Note a call, and let the first fault that it meets happen: before it, or after its effect."""
    customer.called(method)
    fault = take_fault(customer, method)

    async def happen() -> None:
        if fault.when.startswith("hang"):
            await anyio.sleep_forever()
        raise refuse(fault)

    if fault and fault.when in {"before", "hang"}:
        await happen()
    yield
    if fault:
        await happen()


class Tokens:
    """Mints and reads; a process that is started anew knows the tokens of the one before."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokens.key"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.write_bytes(secrets.token_bytes(32))
        self.key: Final = file.read_bytes()

    def mint(self, seconds: float, **claims: Any) -> tuple[str, int]:
        """Return a token that holds for so long, and until when that is (epoch seconds)."""
        ends = int(time.time() + seconds)
        return jwt.encode({**claims, "exp": ends}, self.key, _ALGORITHM), ends

    def read(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that was minted here, also of one that holds no more.

        Raises:
            jwt.InvalidTokenError: It is none of ours.
        """
        unasked = {"verify_aud": False, "verify_exp": False}
        return jwt.decode(token, self.key, [_ALGORITHM], options=unasked)  # type: ignore[arg-type]


C = TypeVar("C", bound=Customer)


@dataclass(kw_only=True)
class World(Generic[C]):
    """All customers, on the disk and in memory."""

    kind: ClassVar[type[Customer]]
    folder: Path
    tasks: TaskGroup
    """Where whatever goes on by itself is started; it ends with the process."""
    customers: dict[str, C] = field(default_factory=dict)
    seen: float = field(default_factory=time.monotonic)
    """When the plane was last called, of the monotonic clock."""
    live: dict[str, Any] = field(default_factory=dict)
    """What runs for each service or app; never on the disk."""
    tokens: Tokens = field(init=False)
    planted: dict[str, Any] = field(default_factory=dict)
    """What was put into each customer's log, by its id; never on the disk."""

    def __post_init__(self) -> None:
        self.tokens = Tokens(self.folder)
        self._files().mkdir(parents=True, exist_ok=True)
        for file in sorted(self._files().glob("*.json")):
            with contextlib.suppress(ValidationError):  # an older version's: it begins anew
                found: Any = self.kind.model_validate_json(file.read_bytes())
                self.customers[found.id] = found

    def keep(self, customer: C) -> None:
        """Write a customer down, unless it was forgotten meanwhile."""
        if self.customers.get(customer.id) is customer:
            part = self._files() / f".{customer.id}.part"
            part.write_text(customer.model_dump_json(), encoding="utf-8")
            part.replace(self._files() / f"{customer.id}.json")

    def forget(self, customer: C) -> None:
        """Know nothing of a customer any more."""
        self.customers.pop(customer.id, None)
        self.planted.pop(customer.id, None)
        (self._files() / f"{customer.id}.json").unlink(missing_ok=True)

    def touch(self) -> None:
        """Somebody is there."""
        self.seen = time.monotonic()

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self.customers.values()))

    def _files(self) -> Path:
        return self.folder / f"{self.kind.__name__.lower()}s"
