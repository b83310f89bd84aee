"""Where a VM answers, whom its firewall lets in, and the one certificate to be trusted."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NoReturn

import anyio

from backends.common.concurrency import or_note
from backends.common.engine import why_silent
from backends.container import PORT
from backends.google import secrets
from backends.google.logs import quoted
from backends.tpu import chips, firewall, logs, site
from backends.tpu import store as memory
from backends.tpu.chips import Look, has_tls, is_internal, url_of
from backends.tpu.logs import VmLog
from backends.tpu.site import CERTIFICATE, ENGINE, Chip, ChipState, Site
from core.address import KEY_HEADER
from core.errors import NextStep, NotReady, OpsError, Unreachable
from core.records import Access, Failure

_TLS: Final = "HTTPS with a certificate of its VM's own, the only one that is trusted for it"
_PLAIN: Final = "plain HTTP, which whoever is on the way can read, the key included"
_OPEN: Final = "a proxy lets through what the key opens, and /health and /ping without one"
_KNOWN_SECONDS: Final = 300.0


async def access(site: Site, name: str) -> Access:
    """Give address, certificate and the engine's key.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        NotReady: It has no chip, no address or no certificate yet, or is reached by a tunnel alone.
        CloudError: Google refused.
    """
    chip = await chips.chip_of(site, name)
    seen = Look(site, memory.record_of(site, name), chip, datetime.now(UTC))
    if chip is None or chip.state is not ChipState.RUNNING:
        _not_yet(seen, "has no VM that runs")
    return await access_of(seen, await _certificate(site, chip) if _is_direct(seen) else None)


async def access_of(seen: Look, certificate: str | None) -> Access:
    """Give it of a deployment whose VM was looked at, and the certificate that this told of.

    Raises:
        NotReady: It has no address or no certificate yet, or is reached by a tunnel alone.
        CloudError: Google refused.
    """
    site, url = seen.site, url_of(seen)
    if seen.chip and is_internal(seen.spec):
        _through_a_tunnel(seen, seen.chip)
    if url is None:
        _not_yet(seen, "has no address")
    if certificate is None and _is_direct(seen):
        _not_yet(seen, "has published no certificate")
    let_in = await or_note(lambda: firewall.seen(site, seen.name), None)
    return Access(
        base_url=url,
        api_key=await secrets.read(site, site.key_secret(seen.name)),
        certificate=certificate,
        certificate_command=_certificate_command(seen) if certificate else "",
        header_commands={KEY_HEADER: _key_command(seen)},
        protection=_protection(let_in, tls=certificate is not None),
    )


def remember(site: Site, chip: Chip, certificate: str | None) -> None:
    """Spare the next questions a look into the log."""
    if certificate:
        site.certificates[_key(chip)] = (anyio.current_time(), certificate)


def tunnel(seen: Look, chip: Chip) -> str:
    """Give the command that brings its port to this machine, as `localhost`."""
    compute = chip.place.plane == "compute"
    kind = "compute ssh" if compute else "compute tpus tpu-vm ssh"
    through = "" if chip.external_ip else " --tunnel-through-iap"
    alpha = "alpha " if through and not compute else ""
    where = f"--zone={chip.place.zone} --project={shlex.quote(seen.site.clients.project)}"
    return (
        f"gcloud {alpha}{kind} {chip.node or chip.id} {where}{through}"
        f" -- -N -L {PORT}:localhost:{PORT}"
    )


async def _certificate(site: Site, chip: Chip) -> str | None:
    """Give its certificate; a VM that boots again within minutes is told of by status_vllm."""
    at, known = site.certificates.get(_key(chip), (0.0, None))
    if known and anyio.current_time() - at < _KNOWN_SECONDS:
        return known
    found = await logs.certificate(site, chip)
    remember(site, chip, found)
    return found


def _key(chip: Chip) -> str:
    return f"{chip.place} {chip.id} {chip.external_ip} {chip.created_at}"


def _is_direct(seen: Look) -> bool:
    """Whether it is spoken to by TLS, at its own address."""
    return has_tls(seen.kept, seen.spec) and not is_internal(seen.spec)


def _through_a_tunnel(seen: Look, chip: Chip) -> NoReturn:
    scheme = "https" if has_tls(seen.kept, seen.spec) else "http"
    raise NotReady(
        f"{seen.name} lets nobody in from outside its VM (access=internal).",
        fix=f"Run `{tunnel(seen, chip)}` and, while it runs, ask {scheme}://localhost:{PORT}"
        f" with the key that `{_key_command(seen)}` prints; or deploy it with access=private.",
    )


def _not_yet(seen: Look, why: str) -> NoReturn:
    raise NotReady(
        f"{seen.name} {why} (yet).",
        fix="Call status_vllm, which says how far it is.",
        next_steps=(NextStep("status_vllm", {"target": seen.site.target.name, "name": seen.name}),),
    )


def _key_command(seen: Look) -> str:
    return (
        f"gcloud secrets versions access latest --secret={seen.site.key_secret(seen.name)}"
        f" --project={shlex.quote(seen.site.clients.project)}"
    )


def _certificate_command(seen: Look) -> str:
    """Print it from the log; the newest is that of the newest boot."""
    wanted = (
        f"log_id({quoted(site.LOG)}) AND labels.deployment={quoted(seen.name)}"
        f" AND labels.phase={quoted(CERTIFICATE)}"
    )
    return (
        f"gcloud logging read {shlex.quote(wanted)} --limit=1 --order=desc --freshness=30d"
        " --format='value(jsonPayload.message)'"
        f" --project={shlex.quote(seen.site.clients.project)}"
    )


def _protection(let_in: Sequence[str] | None, *, tls: bool) -> str:
    who = "the firewall's rule could not be read"
    if let_in is not None:
        whom = "everybody" if set(firewall.ANYBODY) & set(let_in) else ", ".join(let_in) or "nobody"
        who = f"the firewall lets in {whom}"
    return f"{_TLS if tls else _PLAIN}; {who}; {_OPEN}."


def life(seen: Look, told: VmLog) -> str:
    """Name one life of an engine: another address or another start is another one."""
    chip = seen.chip
    started = next((one.at for one in reversed(told.script) if one.phase == ENGINE), None)
    return f"{chip.place} {chip.id} {chip.external_ip} {started}" if chip else ""


def has_answered(seen: Look, told: VmLog) -> bool:
    """Whether it has been heard in this life."""
    return life(seen, told) in seen.site.answered


def ever_answered(seen: Look) -> bool:
    """Whether it has been heard in any life of this VM."""
    chip = seen.chip
    known = f"{chip.place} {chip.id} {chip.external_ip} " if chip else ""
    return any(one.startswith(known) for one in seen.site.answered) if known else False


async def probe_model(seen: Look, told: VmLog) -> Failure | None:
    """Ask the model; None once it has answered, else why it has not."""
    if seen.chip:
        remember(seen.site, seen.chip, told.certificate)

    async def reached() -> Access:
        return await access_of(seen, told.certificate)

    failure = await why_silent(reached, "Its VM")
    if failure is None:
        seen.site.answered.add(life(seen, told))
        return None
    return await _with_callers(seen, failure) if failure.code == Unreachable.code else failure


async def _with_callers(seen: Look, failure: Failure) -> Failure:
    """Say whether the firewall keeps this machine out: Google drops what it does not let in."""
    try:
        let_in = await firewall.seen(seen.site, seen.name)
        here = await firewall.callers(seen.site)
    except OpsError:
        return failure
    if not set(here) - set(let_in) or set(firewall.ANYBODY) & set(let_in):
        return failure
    cause = (
        f"{failure.cause} Its firewall lets in {', '.join(let_in) or 'nobody'}, and callers are"
        f" {', '.join(here)} now."
    )
    fix = "Call deploy_vllm again, which lets them in; the model need not boot again."
    return failure.model_copy(update={"cause": cause, "fix": fix})
