"""The firewall rule of a deployment: whom it lets in, and whose it is."""

from collections.abc import Mapping
from typing import Any

import pytest

from backends.google.errors import strictly
from backends.lifecycle import advance, remove, unless_foreign
from backends.tpu import compute
from backends.tpu.site import Site, vm_id
from core import errors
from core.settings import GooglePlane
from tests.backends.tpu.orders import blueprint
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls
from tests.soon import soon

pytestmark = pytest.mark.anyio

HOME, WORK = "203.0.113.7", "198.51.100.0/24"


async def let_in(site: Site, name: str = "gemma", **said: Any) -> tuple[str, ...]:
    """Make the rule of a deployment; returns who is let in then."""
    made = blueprint(site, name, **said)
    known = () if made.anybody else await compute.callers(site)
    assert await advance([compute.firewall_rule(site, name, made, known)], seconds=10) is None
    return await compute.let_in(site, name)


async def closed(site: Site) -> tuple[str, ...]:
    """Take it away; returns what was."""
    rule = unless_foreign(compute.firewall_rule(site, "gemma"))
    removal = await remove([rule], seconds=10)
    assert removal.gone
    return removal.removed


async def asked(site: Site, verb: str, path: str = "", **more: Any) -> Mapping[str, Any]:
    with strictly("ask for rules"):
        return await compute.call(site.clients, "ask", verb, f"global/firewalls{path}", **more)


async def listed(site: Site) -> list[str]:
    return [one["name"] for one in (await asked(site, "GET"))["items"]]


async def written(site: Site, **said: Any) -> Mapping[str, Any]:
    """Change the rule, or make one, behind our back; returns how it stands then."""
    name = vm_id("gemma")
    rule = {"name": name, "network": "global/networks/default", "direction": "INGRESS", **said}
    if name in await listed(site):
        await asked(site, "PATCH", f"/{name}", json=rule)
    else:
        await asked(site, "POST", json=rule)

    async def look() -> Mapping[str, Any]:
        return await asked(site, "GET", f"/{name}") if name in await listed(site) else {}

    def done(seen: Mapping[str, Any]) -> bool:
        return bool(seen) and {**seen, **said} == seen

    return await soon(look, done, waiting_for="the rule")


async def test_the_callers_are_let_in_and_nobody_else_and_it_follows_them(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Deployed again from elsewhere, the former address is out; what holds is not written again."""
    async with opened(plane, project, google_allowed_addresses=f"{HOME},{WORK},{HOME}") as site:
        assert await let_in(site) == (f"{HOME}/32", WORK)
        there = await written(site)
        assert there["targetTags"] == [vm_id("gemma")]
        assert there["allowed"] == [{"IPProtocol": "tcp", "ports": ["8000"]}]
    async with opened(plane, project, google_allowed_addresses=WORK) as site:
        assert await let_in(site) == (WORK,)
        before = controls.get(project)["calls"].count("compute.firewalls.patch")
        assert await let_in(site) == (WORK,)
        assert controls.get(project)["calls"].count("compute.firewalls.patch") == before
        assert await let_in(site, anybody=True) == (compute.ANYBODY,)


async def test_a_rule_that_somebody_switched_off_is_switched_on_again(
    plane: GooglePlane, project: str
) -> None:
    """Switched off it lets in nobody, and is told so."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await let_in(site)
        await written(site, disabled=True)
        assert await compute.let_in(site, "gemma") == ()
        assert await let_in(site) == (f"{HOME}/32",)


@pytest.mark.parametrize(
    "description", ["", "managed-by=vllm-devops-agent deployment=gemma-2 target=t", "open to all"]
)
async def test_a_rule_that_is_not_ours_is_left_as_it_is(
    plane: GooglePlane, project: str, description: str
) -> None:
    """By its description: rules have no labels."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        theirs = {"description": description, "sourceRanges": ["0.0.0.0/0"]}
        before = await written(site, allowed=[{"IPProtocol": "tcp"}], **theirs)
        with pytest.raises(errors.NotOurs):
            await let_in(site)
        assert await closed(site) == ()
        assert await compute.let_in(site, "gemma") == ()
        assert await asked(site, "GET", f"/{vm_id('gemma')}") == before


async def test_closed_it_is_gone_and_again_is_harmless(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await let_in(site)
        assert await closed(site) == (f"its firewall rule {vm_id('gemma')}",)
        assert (await listed(site), await closed(site)) == ([], ())


async def test_a_rule_of_another_network_is_made_anew(plane: GooglePlane, project: str) -> None:
    """Google changes whom a rule lets in, never the network that it is for."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await let_in(site)
        with pytest.raises(errors.CloudRefused):  # the simulated cloud has one network alone
            await let_in(site, network="inner")
        assert await listed(site) == []


@pytest.mark.parametrize(
    ("method", "status", "when", "error"),
    [
        ("insert", "UNAVAILABLE", "after", None),
        ("insert", "UNAVAILABLE", "before", errors.CloudUnavailable),
        ("insert", "PERMISSION_DENIED", "before", errors.PermissionDenied),
        ("delete", "UNAVAILABLE", "after", None),
        ("delete", "UNAVAILABLE", "before", errors.CloudUnavailable),
    ],
)
async def test_a_call_that_fails_is_looked_at(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    method: str,
    status: str,
    when: str,
    error: type[errors.OpsError] | None,
) -> None:
    """Taken, it is no failure; not taken, it is one, and what was there is as before."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        if method == "delete":
            await let_in(site)
        before = await listed(site)
        faults = [fault(f"compute.firewalls.{method}", status, when=when)]
        controls.set(project, faults=faults)
        work = closed(site) if method == "delete" else let_in(site)
        if error:
            with pytest.raises(error):
                await work
        else:
            assert await work
        assert (await listed(site) == before) is (error is not None)


async def test_a_rule_that_google_took_and_did_not_make_is_a_failure(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operation alone says so."""
    monkeypatch.setattr(compute, "failure_of", lambda _operation: "No more rules.")
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        with pytest.raises(errors.CloudRefused) as caught:
            await let_in(site)
    assert caught.value.cause == "No more rules."


@pytest.mark.parametrize("said", ["home", "2001:db8::1", "203.0.113.7/24"])
async def test_what_is_no_range_is_refused_before_anything_is_made(
    plane: GooglePlane, project: str, said: str
) -> None:
    async with opened(plane, project, google_allowed_addresses=said) as site:
        with pytest.raises(errors.InvalidArgument) as caught:
            await let_in(site)
        assert await listed(site) == []
    assert "GOOGLE_ALLOWED_ADDRESSES" in caught.value.summary


async def test_whoever_asks_is_let_in_where_nobody_is_named(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        assert await compute.callers(site) == ("127.0.0.1/32",)
