"""What a deployment needs of the project: APIs, permissions, account, token, network, callers."""

from collections.abc import Iterator
from functools import partial

from backends.common.preflight import Answer, Question
from backends.google import setup
from backends.google.errors import translated
from backends.google.setup import has_roles
from backends.tpu import firewall
from backends.tpu.blueprint import Blueprint
from backends.tpu.compute_calls import looking
from backends.tpu.needs import needed, needs
from backends.tpu.site import Site
from core.cloud_errors import CloudUnavailable
from core.errors import InvalidArgument


def questions(site: Site, made: Blueprint) -> Iterator[Question]:
    """Ask for what every VM needs, and for the callers where only they are let in."""
    wanted, of_it = needs(), needed(made)
    yield setup.check_reachable(site)
    yield setup.check_apis(site, [api.name for api in wanted.apis if api.needed_by in of_it])
    yield setup.check_permissions(
        site, [one for one in wanted.permissions if one.needed_by in of_it]
    )
    yield from setup.check_account(site, made.service_account)
    yield Question("That account has its roles", partial(_roles, site, made))
    if (made.spec.weights or "hub") == "hub":
        yield setup.check_token(site)
    yield Question(f"The network {made.network} is there", partial(_network, site, made))
    if not made.external_ip:
        yield Question("The VM reaches the internet", partial(_outside, made))
    if made.opened and not made.anybody:
        yield Question("It is known who may call", partial(_callers, site))


async def _roles(site: Site, made: Blueprint) -> Answer:
    wanted = needs().roles
    if await has_roles(site, made.service_account, wanted):
        return Answer(passed=True, detail=f"It may {' and '.join(one.why for one in wanted)}.")
    names = ", ".join(one.name for one in wanted)
    detail = f"It has not all of {names}: docker would not start a container that cannot log."
    return Answer(passed=False, detail=detail, fix=setup.SET_UP)


async def _network(site: Site, made: Blueprint) -> Answer:
    from google.api_core.exceptions import NotFound

    client, what = await site.clients.networks(), f"look at the network {made.network}"
    named = {"project": site.clients.project, "network": made.network}
    try:
        with translated(what):
            await looking(what, client.get, request=named)
    except NotFound:
        fix = "Give network=NETWORK/SUBNETWORK, or make the default one:"
        command = f"gcloud compute networks create default --project={site.clients.project}"
        return Answer(passed=False, detail="There is none of that name.", fix=f"{fix} {command}")
    if made.subnetwork:
        detail = f"It is; its subnetwork {made.subnetwork} must be in each zone's region."
        return Answer(passed=True, detail=detail)
    return Answer(passed=True, detail="It is.")


async def _outside(made: Blueprint) -> Answer:
    return Answer(
        passed=None,
        detail="It has no external IP: whether the network has Cloud NAT is not looked at.",
        fix=f"Without it neither image nor model can be fetched: give {made.network} Cloud NAT.",
    )


async def _callers(site: Site) -> Answer:
    try:
        known = await firewall.callers(site)
    except (InvalidArgument, CloudUnavailable) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")
