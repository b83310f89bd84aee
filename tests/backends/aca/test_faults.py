"""Whatever Azure answers: a coded error or none, the truth afterwards, and nothing left over."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from azure.core.pipeline.transport import AioHttpTransport
from pydantic import SecretStr

from backends.aca import deployment, secrets
from backends.aca.app import expires_in, find_app, get_app, spec_in
from backends.aca.lease import keeper_of
from backends.aca.site import HF_SECRET, PHASES, Site, key_secret
from core.errors import CloudError, OpsError
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca import deployed
from tests.backends.aca.deployed import (
    AT_ONCE,
    MADE,
    PATCH,
    PUT,
    READS,
    SERVED,
    delete,
    go,
    impatient,
    resources,
    stands,
    stopped,
)
from tests.backends.aca.sites import fault, opened

pytestmark = [pytest.mark.anyio, pytest.mark.life]
HANG_SECONDS: Final = 0.2


class Answer(NamedTuple):
    """How Azure answers wrongly, and what we call it."""

    status: int
    when: str
    code: str
    said: str = ""
    """Azure's own code."""


KINDS: Final = {
    "refused": (
        Answer(403, "before", "PERMISSION_DENIED", "AuthorizationFailed"),
        Answer(409, "before", "CONCURRENT_CHANGE", "ContainerAppOperationInProgress"),
        Answer(429, "before", "CLOUD_UNAVAILABLE"),
    ),
    "down": (
        Answer(503, "before", "CLOUD_UNAVAILABLE"),
        Answer(503, "after", "CLOUD_UNAVAILABLE"),
    ),
    "silent": (
        Answer(503, "hang", "CLOUD_TIMEOUT"),
        Answer(503, "hang-after", "CLOUD_TIMEOUT"),
    ),
}
"""Every kind of wrong answer."""


class Told(NamedTuple):
    """How a work ended."""

    code: str | None
    notes: tuple[str, ...]


class Wire:
    """Between our clients and Azure."""

    def __init__(self) -> None:
        self.impatient = ""
        """A method whose next call is waited for `HANG_SECONDS` only."""

    async def send(self, send: Any, request: Any, config: dict[str, Any]) -> Any:
        """Pass one call on."""
        if self.impatient and label_of(request.method, request.url) == self.impatient:
            self.impatient, config["read_timeout"] = "", HANG_SECONDS
        return await send(request, **config)


def label_of(method: str, url: str) -> str:
    """Name a call as the simulated Azure does, as far as it is hung up in these tests."""
    path = urlsplit(url).path
    if path.startswith("/vaults/"):
        return f"{method} {path.split('/')[3]}"
    namespace, *rest = path.rpartition("/providers/")[2].split("/")
    action = [rest[-1]] if len(rest) % 2 and len(rest) > 1 else []
    return f"{method} {'/'.join((namespace, *rest[: len(rest) // 2 * 2 : 2], *action))}"


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen to every call, wait for nothing long, and stand on what is prepared."""
    wire, send = Wire(), AioHttpTransport.send

    async def tapped(self: Any, request: Any, **config: Any) -> Any:
        async def pass_on(request: Any, **config: Any) -> Any:
            return await send(self, request, **config)

        return await wire.send(pass_on, request, config)

    def prepared(_site: object, _share: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(AioHttpTransport, "send", tapped)
    monkeypatch.setattr("backends.aca.plan.base", prepared)
    monkeypatch.setattr("backends.aca.site._TRY_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(secrets, "_LOOK_SECONDS", 0.02)
    impatient(monkeypatch)
    return wire


async def told_of(work: Awaitable[Any]) -> Told:
    """Do it; any exception but a coded one with a way out is a bug."""
    code: str | None = None
    with collecting_notes() as notes:
        try:
            await work
        except OpsError as exc:
            code = exc.code if exc.fix else f"{exc.code} without a fix"
    return Told(code, tuple(notes))


Do = Callable[[Site, str], Awaitable[Any]]
Holds = Callable[[Site, str], Awaitable[bool]]
KEY: Final = "PUT secrets"
JOB: Final = "PUT Microsoft.App/jobs"
GRANT: Final = "PUT Microsoft.Authorization/roleAssignments"
DELETE: Final = "DELETE Microsoft.App/containerApps"
STOP: Final = f"POST {PUT[4:]}/stop"
START: Final = f"POST {PUT[4:]}/start"
DELETE_KEY: Final = "DELETE secrets"
PURGE_KEY: Final = "DELETE deletedsecrets"
DELETE_JOB: Final = "DELETE Microsoft.App/jobs"
DELETE_GRANT: Final = "DELETE Microsoft.Authorization/roleAssignments"


class Work(NamedTuple):
    """Something that is done to a deployment, the calls that change, and how it is afterwards."""

    do: Do
    calls: tuple[str, ...]
    holds: Holds
    begin: Do | None = None
    """What there must be before."""


async def make(site: Site, name: str, **said: Any) -> None:
    """Deploy a model that is really served: one that ends at once is replaced by the next call."""
    await deployed.make(site, name, **SERVED, **said)


async def replace(site: Site, name: str) -> None:
    await make(site, name, max_model_len=2048)


async def make_to_end(site: Site, name: str) -> None:
    await make(site, name, ttl_minutes=5)


async def make_and_stop(site: Site, name: str) -> None:
    """Stop one whose job has another time than its next start gives it: that moves the job."""
    await make(site, name, ttl_minutes=9)
    await deployment.stop(site, name)
    said = spec_in((await get_app(site, name)).tags)
    assert said
    await deployment.limit(site, said.model_copy(update={"ttl_minutes": 5}))


async def keep_token(site: Site, _name: str) -> None:
    await secrets.keep(site, HF_SECRET, SecretStr("hf_first"))


async def from_elsewhere(site: Site, name: str) -> None:
    """Deploy again where this machine has another address."""
    plane = await site.clients.plane()
    assert plane
    async with opened(
        plane, site.ground.subscription, azure_allowed_addresses=("203.0.113.7",)
    ) as moved:
        await make(moved, name)


async def _there(site: Site, name: str) -> bool:
    return await find_app(site, name) is not None


async def _gone(site: Site, name: str) -> bool:
    return not await _there(site, name)


async def _replaced(site: Site, name: str) -> bool:
    spec = spec_in((await get_app(site, name)).tags)
    return spec is not None and spec.max_model_len == 2048


async def _scaled(site: Site, name: str) -> bool:
    spec = spec_in((await get_app(site, name)).tags)
    return spec is not None and spec.max_replicas == 2


async def _runs(site: Site, name: str) -> bool:
    return not await stopped(site, name)


async def _let_in(site: Site, name: str) -> bool:
    app: Any = await get_app(site, name)
    rules = app.properties.configuration.ingress.ip_security_restrictions or ()
    return [rule.ip_address_range for rule in rules] == ["203.0.113.7/32"]


async def _kept(site: Site, _name: str) -> bool:
    return await secrets.exists(site, HF_SECRET)


async def _scale(site: Site, name: str) -> None:
    await deployment.scale(site, name, 0, 2)


async def _extend(site: Site, name: str) -> None:
    await deployment.extend(site, name, 90)


async def _lasts(site: Site, name: str) -> bool:
    at = expires_in(await get_app(site, name))
    return at is not None and at.timestamp() > time.time() + 80 * 60 and await _ends(site, name)


async def _ends(site: Site, name: str) -> bool:
    """Whether Azure itself ends it."""
    app = await find_app(site, name)
    return app is not None and (await keeper_of(site, app, spec_in(app.tags))).lease == "cloud"


WORKS: Final = {
    "apply": Work(make, (KEY, PUT), _there),
    "replace": Work(replace, (PUT,), _replaced, begin=make),
    "scale": Work(_scale, (PATCH,), _scaled, begin=make),
    "stop": Work(deployment.stop, (STOP,), stopped, begin=make),
    "start": Work(deployment.start, (PATCH, JOB, START), _runs, begin=make_and_stop),
    "lease": Work(make_to_end, (KEY, JOB, PUT, GRANT), _ends),
    "more time": Work(_extend, (PATCH, JOB), _lasts, begin=make_to_end),
    "move": Work(from_elsewhere, (PATCH,), _let_in, begin=make),
    "delete": Work(
        delete, (DELETE_GRANT, DELETE, DELETE_JOB, DELETE_KEY, PURGE_KEY), _gone, begin=make_to_end
    ),
    "keep": Work(keep_token, (KEY,), _kept),
}


def cases() -> list[tuple[str, str]]:
    """Give every work with every call that it changes something by."""
    return [(name, call) for name, work in WORKS.items() for call in work.calls]


LOOKS: Final = {
    "apply": ("GET Microsoft.App/containerApps", "GET secrets", "GET operations"),
    "replace": ("GET Microsoft.App/containerApps/revisions",),
    "stop": ("GET Microsoft.App/containerApps", "GET operations"),
    "delete": ("GET Microsoft.App/containerApps", "GET Microsoft.KeyVault/vaults", "GET secrets"),
}
"""Calls that only look, and are refused for good."""


class World(NamedTuple):
    """A subscription in which nothing ever boots."""

    site: Site
    controls: Controls
    wire: Wire

    def set(self, **knobs: Any) -> dict[str, Any]:
        """Change knobs; gives what there is."""
        return self.controls.set(self.site.ground.subscription, **knobs)

    def whole(self, name: str) -> bool:
        """Whether a deployment is there with its key; anything between is an orphan."""
        seen = self.set()
        app = any(one.endswith(f"/containerapps/{name}") for one in seen["resources"])
        running = [one for one in seen["replicas"] if one["app"].endswith(f"/{name}")]
        assert app or not running  # a replica without its app is billed for ever
        key = any(key_secret(name) in vault for vault in seen["secrets"].values())
        assert app is key, (name, app, key)
        assert app or not seen["principals"].get(f"lease-{name}")
        return app

    async def wrong(self, method: str, answer: Answer, work: Awaitable[Any]) -> Told:
        """Let one call of a method be answered wrongly while something is done."""
        fault = {"method": method, "status": answer.status, "when": answer.when}
        before = len(self.set(faults=[{**fault, "code": answer.said}])["calls"])
        hangs = answer.when.startswith("hang")
        if hangs:
            self.wire.impatient = method
        told = await told_of(work)
        calls = self.set(faults=[])["calls"][before:]
        assert not self.wire.impatient if hangs else method in calls, calls
        assert told.code in {None, answer.code}, (told, answer)
        return told


_LOOKS: Final = {"POST Microsoft.App/containerApps/getAuthtoken", "POST metrics:getBatch"}
"""What a look at a deployment asks with POST; it changes nothing."""


@pytest.fixture
async def world(
    azure: AzurePlane, subscription: str, controls: Controls, wire: Wire
) -> AsyncIterator[World]:
    async with opened(azure, subscription) as site:
        controls.set(
            subscription, rollout="never", quotas={"a100": 50}, environment_quotas={"a100": 50}
        )
        yield World(site, controls, wire)


@pytest.mark.parametrize("what", WORKS)
async def test_every_call_that_changes_something_is_in_the_matrix(world: World, what: str) -> None:
    """A call that is new here needs a row."""
    work = WORKS[what]
    if work.begin:
        await work.begin(world.site, "gemma")
    before = world.set()["calls"]
    await work.do(world.site, "gemma")
    made = world.set()["calls"][len(before) :]
    changed = {call for call in made if not call.startswith("GET")} - READS - _LOOKS
    assert changed == set(work.calls)
    assert await work.holds(world.site, "gemma")


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("what", "method"), cases())
async def test_what_is_told_is_true_and_the_next_call_does_it(
    world: World, what: str, method: str, how: str
) -> None:
    """No error means that it is so; nothing is there by halves, and a deletion leaves nothing."""
    work, site = WORKS[what], world.site
    for number, answer in enumerate(KINDS[how]):
        name = f"gemma-{number}"
        if work.begin:
            await work.begin(site, name)
        told = await world.wrong(method, answer, work.do(site, name))
        # Who may not write into the vault yet may later: then it waits. A lease is no condition.
        left = site.pending.get(name) or site.unleased.get(name) or told.notes
        assert told.code or await work.holds(site, name) or left
        if what != "delete":
            assert world.whole(name) or not work.begin
        await work.do(site, name)
        assert await work.holds(site, name)
        world.whole(name)
        assert (await delete(site, name)).gone
        assert not world.whole(name)
        await secrets.remove(site, HF_SECRET)


@pytest.mark.parametrize("status", [403, 503])
@pytest.mark.parametrize(
    ("what", "method"), [(what, method) for what, methods in LOOKS.items() for method in methods]
)
async def test_a_look_that_is_refused_stops_no_deletion_for_ever(
    world: World, what: str, method: str, status: int
) -> None:
    """Nothing is made without being looked for; once it may be looked at, all is as it should."""
    work, site = WORKS[what], world.site
    if work.begin:
        await work.begin(site, "gemma")
    code = "AuthorizationFailed" if status == 403 else ""
    fault = {"method": method, "status": status, "code": code, "times": -1}
    world.set(faults=[fault])
    told = await told_of(work.do(site, "gemma"))
    world.set(faults=[])
    assert told.code in {None, "PERMISSION_DENIED", "CLOUD_UNAVAILABLE"}
    assert told.code or await work.holds(site, "gemma") or site.pending.get("gemma")
    await work.do(site, "gemma")
    assert await work.holds(site, "gemma")
    world.whole("gemma")


CALLS = (
    *MADE,
    "POST Microsoft.OperationalInsights/workspaces/sharedKeys",
    "POST Microsoft.Storage/storageAccounts/listKeys",
)
"""Every change, and every key that is asked for."""
LOOKED = (
    "GET Microsoft.Resources/subscriptions/providers",
    "GET Microsoft.Resources/resourceGroups",
    "GET Microsoft.OperationalInsights/workspaces",
    "GET Microsoft.App/managedEnvironments",
    "GET Microsoft.ManagedIdentity/userAssignedIdentities",
    "GET Microsoft.KeyVault/vaults",
    "GET Microsoft.KeyVault/deletedVaults",
    "GET Microsoft.Authorization/roleAssignments",
    "GET Microsoft.Storage/storageAccounts",
    "GET Microsoft.Storage/storageAccounts/fileServices/shares",
    "GET Microsoft.App/managedEnvironments/storages",
)
REFUSED: dict[str, dict[str, Any]] = {
    "forbidden": {"status": 403, "code": "AuthorizationFailed"},
    "down after it was done": {"status": 503, "when": "after"},
}
MOST_TRIES = 40


async def tried(site: Site) -> CloudError | None:
    """Go on once; what was raised, if everything is not there."""
    try:
        phase = await go(site)
    except CloudError as exc:
        return exc
    assert phase is None or phase in PHASES
    return None


async def raised_until_all_is_there(site: Site) -> list[CloudError]:
    """Go on as long as something fails."""
    found: list[CloudError] = []
    for _ in range(MOST_TRIES):
        raised = await tried(site)
        if raised is None:
            return found
        found.append(raised)
    raise AssertionError(found)


@pytest.mark.parametrize("way", REFUSED)
async def test_whatever_change_fails_is_made_by_the_next_call(
    azure: AzurePlane,
    bare_subscription: str,
    controls: Controls,
    way: str,
) -> None:
    faults = [fault(call, **REFUSED[way]) for call in CALLS]
    controls.set(bare_subscription, **AT_ONCE, faults=faults)
    async with opened(azure, bare_subscription) as site:
        raised = await raised_until_all_is_there(site)
        await stands(site)
    assert raised
    assert all(one.fix for one in raised)
    everything = resources(controls, bare_subscription)
    assert len(everything) == len(set(everything))
    assert sum("/managedenvironments/" in one for one in everything) == 3
    assert sum("/roleassignments/" in one for one in everything) == 3
    left = controls.get(bare_subscription)["knobs"]["faults"]
    assert not [one["method"] for one in left if one["times"]]


async def test_whatever_look_fails_is_told_and_looked_at_again(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    refused = {"code": "AuthorizationFailed", "message": "Not you."}
    faults = [fault(call, 403, **refused) for call in LOOKED]
    controls.set(bare_subscription, **AT_ONCE, faults=faults)
    async with opened(azure, bare_subscription) as site:
        raised = await raised_until_all_is_there(site)
        await stands(site)
    assert {one.code for one in raised} == {"PERMISSION_DENIED"}
    left = controls.get(bare_subscription)["knobs"]["faults"]
    assert not [one["method"] for one in left if one["times"]]
