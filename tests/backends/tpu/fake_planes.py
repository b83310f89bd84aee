"""Two control planes that act by a script, in a time of their own; any call can be cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeVar

from backends.google.clients import MANAGED_BY
from backends.tpu import site as tpu
from core.errors import CloudTimeout, NotOurs, OpsError

T = TypeVar("T")

_MOST_CALLS: Final = 3000
BEGIN: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
SAID: Final[Mapping[tpu.ChipState, str]] = {
    tpu.ChipState.WAITING: "WAITING_FOR_RESOURCES",
    tpu.ChipState.RUNNING: "ACTIVE",
}
LATE: Final = timedelta(seconds=20)
Cut = Literal["lost", "answered", "late", "killed-before", "killed"]
"""The call is lost, or its answer; its effect comes `LATE`; or the server dies."""


class Killed(BaseException):
    """The server is dead from here on: nothing of ours cleans up."""


@dataclass(kw_only=True)
class Script:
    """What becomes of a request at one place."""

    refuse: OpsError | None = None
    """At the call; nothing is made."""
    becomes: tpu.ChipState | None = tpu.ChipState.RUNNING
    """In the end; None: it is gone by itself, as one of Compute Engine that failed."""
    after: float = 60
    """Seconds; it waits until then."""
    making: float = 0
    """Seconds before, in which its VM is being made."""
    why: str = ""
    taken_by: Literal["", "user", "service"] = ""
    was_given: bool = False
    """One that is suspended had its chips."""
    refusal: OpsError | None = None
    """That the operation tells in the end."""
    ended: tpu.Ended | None = None
    delete_seconds: float = 30
    undeletable: OpsError | None = None
    unseen: OpsError | None = None
    """What a look at it raises."""


@dataclass
class Row:
    """One request, from its creation until it is gone."""

    place: tpu.Place
    id: str
    labels: Mapping[str, str]
    asked: datetime
    provisioning: tpu.Provisioning = "on-demand"
    spec_json: str = ""
    deleted: datetime | None = None


@dataclass
class Cloud:
    """What there is, and what happened to it."""

    scripts: dict[tpu.Place, Script] = field(default_factory=dict)
    now: datetime = BEGIN
    rows: dict[tpu.Place, Row] = field(default_factory=dict)
    gone: dict[tpu.Place, Row] = field(default_factory=dict)
    """The last one of each place that is there no more."""
    asked: list[tpu.Place] = field(default_factory=list)
    """Every request that was made, in order."""
    touched: list[tpu.Place] = field(default_factory=list)
    """Every deletion of something that was not made by a request of ours."""
    calls: int = 0
    cut: tuple[int, Cut] | None = None
    late: list[tuple[datetime, tpu.Request, tpu.Place]] = field(default_factory=list)

    def script(self, place: tpu.Place) -> Script:
        """Give what becomes of a request there."""
        return self.scripts.setdefault(place, Script())

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        for at, request, place in [one for one in self.late if one[0] <= self.now]:
            self.late.remove((at, request, place))
            self.make(request, place)

    def make(self, request: tpu.Request, place: tpu.Place) -> None:
        """Make what is asked for, unless it is there: one at a time in the whole cloud."""
        there = self.row(place)
        if there is not None and there.labels.get("managed-by") != MANAGED_BY:
            raise NotOurs(f"{there.id} is not ours.", fix="Take another name.")
        if there is not None:
            return
        ours = [one for one in self.alive() if self.rows[one].labels.get("managed-by")]
        assert not ours, f"Asked in {place} while there is one in {ours}."
        made = request.made
        spec = made.spec.model_dump_json(exclude_defaults=True)
        labels, kind = request.labels, made.provisioning
        self.rows[place] = Row(place, made.id, labels, self.now, kind, spec)
        self.asked.append(place)

    def plant(self, place: tpu.Place, chip_id: str, **labels: str) -> Row:
        """Put something there that nobody asked for here."""
        self.rows[place] = Row(place, chip_id, labels, self.now)
        return self.rows[place]

    def row(self, place: tpu.Place) -> Row | None:
        """Give what is there now."""
        found = self.rows.get(place)
        if found is not None and self._is_gone(found):
            self.gone[place] = self.rows.pop(place)
            return None
        return found

    def alive(self) -> list[tpu.Place]:
        """Give every place where something is."""
        return [place for place in tuple(self.rows) if self.row(place)]

    def chip(self, row: Row) -> tpu.Chip:
        """Tell of it as a control plane does."""
        state, script = self.state(row), self.script(row.place)
        given = self._waited(row) >= script.after and state is not tpu.ChipState.WAITING
        had = given and (script.was_given or not state.leftover)
        return tpu.Chip(
            place=row.place,
            id=row.id,
            state=state,
            said=SAID.get(state, state.upper()),
            accelerator="v6e-1",
            chips=1,
            provisioning=row.provisioning,
            labels=row.labels,
            spec_json=row.spec_json,
            created_at=row.asked,
            given_at=row.asked + timedelta(seconds=script.after) if had else None,
            why=script.why if state.leftover else "",
            taken_by=script.taken_by if state.leftover else "",
        )

    def state(self, row: Row) -> tpu.ChipState:
        """Say what it does now."""
        script, waited = self.script(row.place), self._waited(row)
        if row.deleted:
            return tpu.ChipState.DELETING
        if waited < script.after - script.making:
            return tpu.ChipState.WAITING
        if waited < script.after:
            return tpu.ChipState.PROVISIONING
        assert script.becomes is not None
        return script.becomes

    def _waited(self, row: Row) -> float:
        return (self.now - row.asked).total_seconds()

    def _is_gone(self, row: Row) -> bool:
        script = self.script(row.place)
        if row.deleted:
            return (self.now - row.deleted).total_seconds() >= script.delete_seconds
        return script.becomes is None and self._waited(row) >= script.after


class FakePlane:
    """One of the two."""

    def __init__(self, cloud: Cloud, kind: tpu.PlaneKind) -> None:
        self.cloud = cloud
        self.kind: tpu.PlaneKind = kind

    async def create(self, request: tpu.Request) -> str:
        """Make a request, one at a time in the whole cloud."""
        place, cloud = tpu.Place(request.zone, self.kind), self.cloud
        late = cloud.cut == (cloud.calls + 1, "late")
        answer = self._call()
        refuse = cloud.script(place).refuse
        if refuse is not None:
            raise refuse
        if late:
            cloud.late.append((cloud.now + LATE, request, place))
        else:
            cloud.make(request, place)
        return answer(f"operation-{len(cloud.asked)}")

    def bodies(self, request: tpu.Request) -> Mapping[str, object]:
        """Give nothing that anybody sends."""
        return {"zone": request.zone}

    def address(self, request: tpu.Request) -> str:
        """Give what nobody asks."""
        return request.zone

    async def outcome(self, zone: str, operation: str) -> tpu.Outcome:
        """Give that of the script, once the request has come to its end."""
        place, cloud = tpu.Place(zone, self.kind), self.cloud
        row = cloud.row(place)
        answer = self._call()
        over = row is None or cloud.state(row).leftover
        assert operation.startswith("operation-")
        return answer(tpu.Outcome(done=True, error=cloud.script(place).refusal if over else None))

    async def get(self, zone: str, chip_id: str) -> tpu.Chip | None:
        """Look at one."""
        answer = self._call()
        unseen = self.cloud.script(tpu.Place(zone, self.kind)).unseen
        if unseen is not None:
            raise unseen
        row = self.cloud.row(tpu.Place(zone, self.kind))
        return answer(self.cloud.chip(row) if row and row.id == chip_id else None)

    async def list(self) -> Sequence[tpu.Chip]:
        """Give all of this plane, in whichever zone."""
        answer = self._call()
        places = [one for one in self.cloud.alive() if one.plane == self.kind]
        return answer([self.cloud.chip(self.cloud.rows[place]) for place in places])

    async def delete(self, zone: str, chip_id: str) -> None:
        """Delete it in a while."""
        place, cloud = tpu.Place(zone, self.kind), self.cloud
        answer = self._call()
        row = cloud.row(place)
        refuse = cloud.script(place).undeletable
        if refuse is not None:
            raise refuse
        if row is not None:
            assert row.id == chip_id
            if row.labels.get("managed-by") != MANAGED_BY:
                cloud.touched.append(place)
            row.deleted = row.deleted or cloud.now
        answer(None)

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> tpu.Ended | None:
        """Give that of the script."""
        answer = self._call()
        assert chip_id
        assert since <= self.cloud.now
        return answer(self.cloud.script(tpu.Place(zone, self.kind)).ended)

    async def offer(self, zone: str, accelerator: str) -> tpu.Offer:
        """Not know."""
        return tpu.Offer(None, f"{accelerator} in {zone} is not known.")

    def _call(self) -> "_Answered":
        """Count a call, and cut it if it is the one: before it takes effect, or after."""
        cloud = self.cloud
        cloud.calls += 1
        if cloud.calls > _MOST_CALLS:
            raise AssertionError("The cloud is asked again and again.")
        way: Cut | None = None
        if cloud.cut is not None and cloud.cut[0] == cloud.calls:
            way, cloud.cut = cloud.cut[1], None
        if way == "lost":
            raise _silent()
        if way == "killed-before":
            raise Killed
        return _Answered(way)


class _Answered:
    def __init__(self, way: Cut | None) -> None:
        self._way = way

    def __call__(self, answer: T) -> T:
        if self._way in {"answered", "late"}:
            raise _silent()
        if self._way == "killed":
            raise Killed
        return answer


def _silent() -> CloudTimeout:
    return CloudTimeout("Google did not answer.", fix="Look with status_vllm.")
