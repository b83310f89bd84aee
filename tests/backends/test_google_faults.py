"""Whatever Google answers, wherever it ends: an error with a code or none, nothing left over."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

import pytest
from pydantic import SecretStr

from backends.cloud_run.build import latest_build
from backends.cloud_run.service import get_service, is_stopped
from backends.cloud_run.site import Site
from backends.google import errors as google_errors
from backends.google import secrets
from backends.google.clients import HF_SECRET, key_secret
from backends.tpu.site import PlaneKind, Search
from backends.tpu.site import Site as TpuSite
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import backend_of, opened, planned
from tests.backends.google_faults import (
    ANSWERS,
    WAYS,
    Way,
    Wire,
    answers_to,
    ends,
    wire,
    wrong,
)
from tests.backends.google_secrets import remove_secret
from tests.backends.tpu import searches, sites
from tests.google_plane import Controls
from tests.soon import soon

__all__ = ["wire"]
pytestmark = [pytest.mark.anyio, pytest.mark.life]

Do = Callable[[Site, str], Awaitable[Any]]
MUST: Final[frozenset[str]] = frozenset()
"""Without its answer the work fails, whatever it is."""
MAY: Final = frozenset(answer.code for answer in ANSWERS)
"""The work goes on without it."""
TWICE: Final = frozenset({"CLOUD_UNAVAILABLE", "CLOUD_TIMEOUT"})
"""It is done once more."""
ALLOWED: Final = frozenset({"PERMISSION_DENIED"})
"""The work goes on where we may not ask."""


async def make(site: Site, name: str, **said: Any) -> None:
    await backend_of(site).apply(planned(site, name=name, **said))


async def build(site: Site, name: str) -> None:
    await make(site, name, model="gemma3:4b", engine="ollama")


async def replace(site: Site, name: str) -> None:
    await make(site, name, max_model_len=2048)


async def stop(site: Site, name: str) -> None:
    await backend_of(site).stop(name)


async def make_and_stop(site: Site, name: str) -> None:
    await make(site, name)
    await stop(site, name)


async def delete(site: Site, name: str) -> None:
    await backend_of(site).delete(name)


async def keep_token(site: Site, _name: str) -> None:
    await secrets.keep(site, HF_SECRET, SecretStr("hf_first"))


Seen = Mapping[str, Any]


async def whole(site: Site, seen: Seen, name: str) -> bool | None:
    """Whether a deployment is there with its key; anything between is an orphan."""
    there = name in seen["services"]
    assert (key_secret(name) in seen["secrets"]) is there, seen["secrets"]
    assert not there or seen["secrets"][key_secret(name)]["versions"] == 1
    return there


async def replaced(site: Site, seen: Seen, name: str) -> bool | None:
    assert await whole(site, seen, name)
    spec = await backend_of(site).spec(name)
    return spec is not None and spec.max_model_len == 2048


async def scaled(site: Site, _seen: Seen, name: str) -> bool | None:
    return bool((await get_service(site, name)).scaling.max_instance_count == 2)


async def stopped(site: Site, _seen: Seen, name: str) -> bool | None:
    return is_stopped(await get_service(site, name))


async def started(site: Site, _seen: Seen, name: str) -> bool | None:
    return not is_stopped(await get_service(site, name))


async def gone(_site: Site, seen: Seen, name: str) -> bool | None:
    """Whether nothing of it is left; while its service is there, its key is."""
    key = key_secret(name) in seen["secrets"]
    assert key or name not in seen["services"]
    return not key and name not in seen["services"]


async def kept(_site: Site, seen: Seen, _name: str) -> bool | None:
    """Whether the token is kept for its reader; a secret that nobody may read is of no use."""
    if HF_SECRET not in seen["secrets"]:
        return False
    found = seen["secrets"][HF_SECRET]
    assert (found["versions"], list(found["bindings"])) == (
        1,
        ["roles/secretmanager.secretAccessor"],
    )
    return True


async def built(site: Site, _seen: Seen, name: str) -> bool | None:
    """Whether its build was begun."""
    return await latest_build(site, name) is not None


async def unbuilt(site: Site, _seen: Seen, name: str) -> bool | None:
    return name not in [one.name for one in await backend_of(site).list()]


class Work(NamedTuple):
    """Something that is done to a deployment, and the calls it makes; which errors are borne."""

    do: Do
    is_done: Callable[[Site, Seen, str], Awaitable[bool | None]]
    calls: Mapping[str, frozenset[str]]
    begin: Do | None = None
    """What there must be before."""
    or_nothing: bool = False
    """Where it fails, nothing of it is there."""


_SECRETS: Final = {
    "SecretManagerService/GetSecret": MUST,
    "SecretManagerService/CreateSecret": MUST,
    "SecretManagerService/AddSecretVersion": TWICE,
    "SecretManagerService/AccessSecretVersion": MUST,
    "SecretManagerService/GetIamPolicy": MUST,
    "SecretManagerService/SetIamPolicy": MUST,
}
_CHANGE: Final = {
    "Services/GetService": MUST,
    "Services/UpdateService": MUST,
    "Operations/GetOperation": MAY,  # the change is read back from the service itself
}
WORKS: Final = {
    "apply": Work(
        make,
        whole,
        {
            **_SECRETS,
            "Services/GetService": MUST,
            "Services/CreateService": MUST,
            "Operations/GetOperation": MAY,  # what there is tells by itself how it goes on
            "CloudScheduler/ListJobs": MAY,  # whether a server that died left any is only said
        },
        or_nothing=True,
    ),
    "replace": Work(replace, replaced, {**_CHANGE, "SecretManagerService/GetSecret": MUST,
         "SecretManagerService/AccessSecretVersion": MUST,
         "SecretManagerService/GetIamPolicy": MUST}, begin=make),
    "scale": Work(lambda site, name: backend_of(site).scale(name, min_replicas=0, max_replicas=2),
         scaled, _CHANGE, begin=make),
    "stop": Work(stop, stopped, _CHANGE, begin=make),
    "start": Work(lambda site, name: backend_of(site).start(name), started, _CHANGE,
         begin=make_and_stop ),
    "delete": Work(
        delete,
        gone,
        {
            "Services/GetService": MUST,
            "Services/DeleteService": MUST,
            "SecretManagerService/GetSecret": MUST,
            "SecretManagerService/DeleteSecret": MUST,
            "CloudBuild/ListBuilds": ALLOWED,  # then it was not built from here
        },
        begin=make,
    ),
    "keep": Work(keep_token, kept, _SECRETS, or_nothing=True),
    "build": Work(build, built, {"Services/GetService": MUST,
         "ArtifactRegistry/ListDockerImages": MUST, "CloudBuild/ListBuilds": MUST,
         "CloudBuild/CreateBuild": MUST, "CloudScheduler/ListJobs": MAY}, or_nothing=True),
    "delete while building": Work(
        delete,
        unbuilt,
        {
            "Services/GetService": MUST,
            "SecretManagerService/GetSecret": MUST,
            "CloudBuild/ListBuilds": ALLOWED,  # then it was not built from here
            "CloudBuild/CancelBuild": MUST,
            "CloudScheduler/GetJob": ALLOWED,  # that none may be left is noted
            "CloudScheduler/ListJobs": ALLOWED,  # so is that
            "ArtifactRegistry/ListDockerImages": MAY,  # whether one is left is noted
        },
        begin=build,
    ),
}  # fmt: skip
LOOKS: Final = frozenset(
    {
        "Services/GetService",
        "Revisions/GetRevision",
        "MetricService/ListTimeSeries",
        "LoggingServiceV2/ListLogEntries",
        "SecretManagerService/AccessSecretVersion",
    }
)
"""A change ends with a look."""


@pytest.fixture
async def site(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Site]:
    """A project of Cloud Run in which nothing ever boots."""
    controls.set(project, rollout="never", quotas={"l4": 50})
    async with opened(plane, project) as site:
        yield site


@pytest.mark.parametrize("what", WORKS)
async def test_every_call_that_is_made_is_in_the_table(
    wire: Wire, site: Site, controls: Controls, what: str
) -> None:
    """A call that is new here needs a row that says whether the work goes on without it."""
    work, project = WORKS[what], site.clients.project
    if work.begin is build:
        controls.set(project, boot_seconds=60)  # else it has ended before it is given up
    if work.begin:
        await work.begin(site, "gemma")
    before = controls.get(project)["calls"]
    await work.do(site, "gemma")
    made = controls.get(project)["calls"][len(before) :]
    calls = {call.rpartition(".")[2] for call in made if not call.startswith("metadata/")}
    assert calls - LOOKS <= set(work.calls) <= calls


@pytest.mark.parametrize(
    ("what", "method"), [(name, call) for name, work in WORKS.items() for call in work.calls]
)
async def test_whatever_google_answers_it_is_as_it_is_told_and_done_by_the_next_call(
    wire: Wire, site: Site, controls: Controls, what: str, method: str
) -> None:
    """It fails exactly where it must; what is new is whole or not there."""
    work, project = WORKS[what], site.clients.project
    if method == "CloudBuild/CancelBuild":
        controls.set(project, boot_seconds=60)  # else it has ended before the call is given up
    for number, answer in enumerate(answers_to(method)):
        name = f"gemma-{number}"
        if work.begin:
            await work.begin(site, name)
        told = await wrong(wire, controls, project, method, answer, work.do(site, name))
        if answer.code in work.calls[method]:
            assert told == ""
        elif answer.when in {"before", "hang"}:
            assert told == answer.code
        done = await work.is_done(site, controls.get(project), name)
        unseen = what == "delete while building" and answer.code == "PERMISSION_DENIED"
        assert told or done or unseen
        assert not (told and work.or_nothing and done)
        await work.do(site, name)
        assert await work.is_done(site, controls.get(project), name)
        if what == "keep":
            assert await remove_secret(site, HF_SECRET)
        if what == "build":
            assert len(controls.get(project)["builds"]) == number + 1


_MOST_CALLS: Final = 150
_ZONES: Final = {"us-east5-a": {"free": 0}, "us-east5-b": {}}
_KINDS: Final = ("tpus", "nodes", "vms", "firewalls", "secrets", "queued_resources", "services")


class Life:
    """Deployments with which something is done that may end at any call."""

    numbers: Mapping[Way, range] = dict.fromkeys(WAYS, range(1, _MOST_CALLS))
    """Which calls are cut."""

    def __init__(self, site: Any, controls: Controls) -> None:
        self.site, self.controls = site, controls

    @property
    def backend(self) -> Any:
        """As another server sees it."""
        return backend_of(self.site)

    async def deploy(self, name: str) -> None:
        await make(self.site, name)

    def left(self, name: str) -> dict[str, list[str]]:
        """Name what is there of a deployment."""
        seen = self.controls.get(self.site.clients.project)
        found = {kind: [one for one in map(str, seen[kind]) if name in one] for kind in _KINDS}
        return {kind: names for kind, names in found.items() if names}

    def is_as_told(self, name: str) -> bool:
        """Whether it is there, or is remembered as failed, where no error was told."""
        return self.is_whole(name)

    def is_whole(self, name: str) -> bool:
        """Whether it has all that it needs, once."""
        there = self.left(name)
        return {kind: len(found) for kind, found in there.items()} == {"services": 1, "secrets": 1}


class TpuLife(Life):
    """The same where the first zone has no chip; followed until there is one."""

    numbers: Mapping[Way, range] = {
        "lost": range(1, _MOST_CALLS, 2), "answered": range(1, _MOST_CALLS, 2),
        "killed": range(2, _MOST_CALLS, 2),
    }  # fmt: skip
    """Every second one: which a number means differs from run to run."""
    site: TpuSite
    plane: PlaneKind

    @property
    def backend(self) -> Any:
        return sites.on(self.site)

    async def deploy(self, name: str) -> None:
        wish = {"zones": tuple(_ZONES), "zone_wait_minutes": 10, "control_plane": self.plane}
        await self.backend.apply(searches.planned(self.site, name=name, **wish))

        async def look() -> Search | None:
            await self.backend.go_on(name)
            return self.site.records.get(name)

        await soon(
            look,
            lambda kept: kept is None or bool(kept.placed or kept.failure),
            waiting_for="the end of the search",
        )

    def is_as_told(self, name: str) -> bool:
        kept = self.site.records.get(name)
        return kept is not None and (kept.failure is not None or self.is_whole(name))

    def is_whole(self, name: str) -> bool:
        kept, there = self.site.records.get(name), self.left(name)
        assert kept is not None
        counts = [len(there.get(kind, ())) for kind in ("tpus", "firewalls", "secrets")]
        return kept.placed == ("us-east5-b", self.plane) and counts == [1, 1, 1]


@pytest.fixture(params=["cloud_run", "queued", "compute"])
async def life(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    wire: Wire,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Life]:
    async with AsyncExitStack() as stack:
        if request.param == "cloud_run":
            controls.set(project, rollout="never", quotas={"l4": 50})
            yield Life(await stack.enter_async_context(opened(plane, project)), controls)
            return
        controls.set(project, tpu_zones=_ZONES, tpu_clock=1200, vm_trouble="image-missing")
        own = sites.opened(plane, project, google_allowed_addresses=("127.0.0.1",))
        tpu = TpuLife(await stack.enter_async_context(own), controls)
        tpu.plane = request.param
        yield tpu


def names(numbers: Iterable[int]) -> Iterable[tuple[int, str]]:
    for number in numbers:
        yield number, f"g{number}x"
    raise AssertionError("There is no end of calls.")


@pytest.mark.parametrize("way", WAYS)
async def test_a_deployment_that_ends_anywhere_is_made_by_the_next(
    life: Life, wire: Wire, way: Way
) -> None:
    """There is one at the end, and none but it; deleted, nothing is left of it."""
    for number, name in names(life.numbers[way]):
        wire.cut(number, way)
        told = await ends(life.deploy(name))
        if not wire.mend():
            return
        assert told is None or " " not in told
        assert told != "" or life.is_as_told(name)
        assert len(life.left(name).get("tpus", ())) <= 1
        await life.deploy(name)
        assert life.is_whole(name)
        assert (await life.backend.delete(name)).gone
        assert life.left(name) == {}


@pytest.mark.parametrize("way", WAYS)
async def test_a_deletion_that_ends_anywhere_is_finished_by_the_next(
    life: Life, wire: Wire, way: Way
) -> None:
    """Without an error it is gone; with one, the next call takes the rest."""
    for number, name in names(range(1, _MOST_CALLS)):
        await life.deploy(name)
        wire.cut(number, way)
        told = await ends(life.backend.delete(name))
        if not wire.mend():
            return
        assert told != "" or life.left(name) == {}
        assert (await life.backend.delete(name)).gone
        assert life.left(name) == {}
        assert life.backend.pending.get(name) is None


@pytest.mark.parametrize("way", WAYS)
async def test_a_replacement_that_ends_anywhere_is_made_by_the_next(
    wire: Wire, site: Site, controls: Controls, way: Way
) -> None:
    """Until then it is the one or the other, with its key."""
    project = site.clients.project
    for number, name in names(range(1, _MOST_CALLS)):
        await make(site, name)
        wire.cut(number, way)
        told = await ends(replace(site, name))
        if not wire.mend():
            return
        assert await replaced(site, controls.get(project), name) or told != ""
        await replace(site, name)
        assert await replaced(site, controls.get(project), name)


async def test_a_short_outage_is_not_noticed(wire: Wire, site: Site, controls: Controls) -> None:
    """A look is repeated; a change is not, and need not be."""
    for method in ("Services/GetService", "SecretManagerService/GetIamPolicy"):
        controls.set(site.clients.project, faults=[{"method": f"*{method}", "times": 2}])
        assert await ends(make(site, "gemma")) == ""


async def test_a_cloud_that_is_down_for_long_is_told_before_anything_is_made(
    wire: Wire, site: Site, controls: Controls
) -> None:
    """A look is repeated for seconds, not for the minute of the SDK's own."""
    controls.set(site.clients.project, faults=[{"method": "*", "times": -1}])
    backend = backend_of(site)
    for work in (
        make(site, "gemma"),
        backend.stop("gemma"),
        backend.delete("gemma"),
        backend.describe("gemma"),
        backend.list(),
    ):
        assert await ends(work) == "CLOUD_UNAVAILABLE"
    seen = controls.set(site.clients.project, faults=[])
    assert not await whole(site, seen, "gemma")


def test_the_patience_of_the_product_has_an_end() -> None:
    """Five seconds, well within the time of a tool; a change has no second try at all."""
    assert google_errors.reading()["retry"].timeout <= 5
    assert google_errors.writing()["retry"] is None
