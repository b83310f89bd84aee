"""The firewall rule of a deployment: whom it lets in, and whose it is."""

from typing import Any

import pytest
from google.cloud.compute_v1.types import Firewall

from backends.tpu import firewall
from backends.tpu.site import Site, vm_id
from core.errors import (
    CloudRefused,
    CloudUnavailable,
    ConcurrentChange,
    InvalidArgument,
    NotOurs,
    PermissionDenied,
)
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu.orders import blueprint
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

HOME, WORK = "203.0.113.7", "198.51.100.0/24"


async def test_the_callers_addresses_are_let_in_and_nobody_else(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, google_allowed_addresses=f"{HOME},{WORK},{HOME}") as site:
        assert await firewall.open(site, blueprint(site)) == (f"{HOME}/32", WORK)
        assert await firewall.seen(site, "gemma") == (f"{HOME}/32", WORK)
        there = await _rule(site)
        assert list(there.target_tags) == [vm_id("gemma")]
        assert [(one.I_p_protocol, list(one.ports)) for one in there.allowed] == [("tcp", ["8000"])]


async def test_a_public_one_is_open_to_everybody(plane: GooglePlane, project: str) -> None:
    """Its key and its certificate protect it then."""
    async with opened(plane, project) as site:
        assert await firewall.open(site, blueprint(site, anybody=True)) == ("0.0.0.0/0",)


async def test_an_internal_one_has_no_rule_and_loses_that_of_its_name(
    plane: GooglePlane, project: str
) -> None:
    """What was open before is closed."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        assert await firewall.open(site, blueprint(site, opened=False)) == ()
        await firewall.open(site, blueprint(site))
        assert await firewall.open(site, blueprint(site, opened=False)) == ()
        assert await _listed(site) == []


async def test_a_rule_follows_who_calls(plane: GooglePlane, project: str) -> None:
    """Deployed again from elsewhere, the former address is out."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
    async with opened(plane, project, google_allowed_addresses=WORK) as site:
        assert await firewall.open(site, blueprint(site)) == (WORK,)
        assert await firewall.seen(site, "gemma") == (WORK,)


async def test_what_holds_already_is_not_written_again(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
        before = _writes(controls, project)
        await firewall.open(site, blueprint(site))
        assert _writes(controls, project) == before


async def test_a_rule_that_somebody_switched_off_is_switched_on_again(
    plane: GooglePlane, project: str
) -> None:
    """Switched off it lets in nobody, and is told so."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
        client, off = await site.clients.firewalls(), Firewall(disabled=True)
        client.patch_unary(project=project, firewall=vm_id("gemma"), firewall_resource=off)
        await wait_until(
            lambda: firewall.seen(site, "gemma"),
            lambda let_in: not let_in,
            waiting_for="the rule to be off",
            every=0.05,
            timeout=10,
        )
        await firewall.open(site, blueprint(site))
        assert await firewall.seen(site, "gemma") == (f"{HOME}/32",)


@pytest.mark.parametrize(
    "description", ["", "managed-by=vllm-devops-agent deployment=gemma-2 target=t", "open to all"]
)
async def test_a_rule_that_is_not_ours_is_left_as_it_is(
    plane: GooglePlane, project: str, description: str
) -> None:
    """By its description: rules have no labels."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await _foreign(site, description)
        before = await _rule(site)
        with pytest.raises(NotOurs):
            await firewall.open(site, blueprint(site))
        assert await firewall.close(site, "gemma") is False
        assert await firewall.seen(site, "gemma") == ()
        assert await _rule(site) == before


async def test_closed_it_is_gone_and_again_is_harmless(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
        assert await firewall.close(site, "gemma") is True
        assert await _listed(site) == []
        assert await firewall.close(site, "gemma") is False


async def test_a_rule_that_does_not_go_is_no_success(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go later, and leave whoever is deployed meanwhile without one."""

    async def stays(_site: Site, _name: str) -> Any:
        return there

    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
        there = await _rule(site)
        monkeypatch.setattr(firewall, "_GONE_SECONDS", 0.0)
        monkeypatch.setattr(firewall, "_look", stays)
        with pytest.raises(ConcurrentChange):
            await firewall.close(site, "gemma")


async def test_a_delete_without_an_answer_is_looked_at(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Taken, it is no failure; not taken, it is one."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
        controls.set(project, faults=[fault("compute.firewalls.delete")])
        with pytest.raises(CloudUnavailable):
            await firewall.close(site, "gemma")
        controls.set(project, faults=[fault("compute.firewalls.delete", when="after")])
        assert await firewall.close(site, "gemma") is True
        assert await _listed(site) == []


async def test_a_rule_of_another_network_is_made_anew(plane: GooglePlane, project: str) -> None:
    """Google changes whom a rule lets in, never the network that it is for."""
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        await firewall.open(site, blueprint(site))
        with pytest.raises(CloudRefused):  # the simulated cloud has one network alone
            await firewall.open(site, blueprint(site, network="inner"))
        assert await _listed(site) == []


async def test_no_answer_is_no_failure_where_it_was_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault("compute.firewalls.insert", when="after")])
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        assert await firewall.open(site, blueprint(site)) == (f"{HOME}/32",)
    controls.set(project, faults=[fault("compute.firewalls.insert")])
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        with pytest.raises(CloudUnavailable):
            await firewall.open(site, blueprint(site, "other"))


async def test_who_may_not_make_rules_is_told(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, denied_permissions=["compute.firewalls.create"])
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        with pytest.raises(PermissionDenied):
            await firewall.open(site, blueprint(site))


async def test_a_rule_that_never_holds_is_a_failure(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read back: what Google took is not yet what it does."""
    monkeypatch.setattr(firewall, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(firewall, "_same", lambda _there, _wanted: False)
    async with opened(plane, project, google_allowed_addresses=HOME) as site:
        with pytest.raises(CloudRefused):
            await firewall.open(site, blueprint(site))


@pytest.mark.parametrize("said", ["home", "2001:db8::1", "203.0.113.7/24"])
async def test_what_is_no_range_is_refused_before_anything_is_made(
    plane: GooglePlane, project: str, controls: Controls, said: str
) -> None:
    async with opened(plane, project, google_allowed_addresses=said) as site:
        with pytest.raises(InvalidArgument) as caught:
            await firewall.open(site, blueprint(site))
    assert "GOOGLE_ALLOWED_ADDRESSES" in caught.value.summary
    assert _writes(controls, project) == 0


async def test_whoever_asks_is_let_in_where_nobody_is_named(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        assert await firewall.callers(site) == ("127.0.0.1/32",)


async def _foreign(site: Site, description: str) -> None:
    client = await site.clients.firewalls()
    theirs = firewall.rule(blueprint(site), "t", ["0.0.0.0/0"])
    theirs.description = description
    client.insert_unary(project=site.clients.project, firewall_resource=theirs, timeout=10)
    await wait_until(
        lambda: _listed(site),
        lambda names: vm_id("gemma") in names,
        waiting_for="their rule",
        every=0.05,
        timeout=10,
    )


async def _listed(site: Site) -> list[str]:
    client = await site.clients.firewalls()
    return [one.name for one in client.list(project=site.clients.project, timeout=10)]


async def _rule(site: Site) -> Any:
    client = await site.clients.firewalls()
    return client.get(project=site.clients.project, firewall=vm_id("gemma"), timeout=10)


def _writes(controls: Controls, project: str) -> int:
    calls = controls.get(project)["calls"]
    verbs = ("insert", "patch", "update", "delete")
    return sum(calls.count(f"compute.firewalls.{verb}") for verb in verbs)
