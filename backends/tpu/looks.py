"""What was read of a deployment at one moment, and the record that it becomes."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from pydantic import ValidationError

from backends import container
from backends.container import PORT
from backends.google.clients import EXPIRES_LABEL, SPEC_LABEL
from backends.tpu import spending
from backends.tpu.chip import SAID, Chip, ChipState
from backends.tpu.kept import Kept
from backends.tpu.rules import rules
from backends.tpu.site import Site
from core.records import Deployment, DeploymentSpec, Failure, Phase, State

_PLACES_SAID: Final = 6
"""Of those that gave no chip, the newest."""
_UNTIL_UNKNOWN: Final = frozenset({ChipState.STOPPED, ChipState.SUSPENDED, ChipState.FAILED})
"""It bills no more, and since when is not told here."""


class Look(NamedTuple):
    """What was read of a deployment at one moment; either half may be missing."""

    site: Site
    kept: Kept | None
    chip: Chip | None
    now: datetime

    @property
    def name(self) -> str:
        """Of the deployment."""
        return self.kept.name if self.kept else self.chip.deployment if self.chip else ""

    @property
    def spec(self) -> DeploymentSpec | None:
        """What was asked for, as this machine or the VM's metadata has it."""
        if self.kept:
            return self.kept.blueprint.spec
        return spec_in(self.chip) if self.chip else None

    @property
    def created_at(self) -> datetime:
        """When it was asked for."""
        return self.kept.since if self.kept else self.chip.created_at if self.chip else self.now

    @property
    def begun(self) -> datetime:
        """When its VM was there, or at least asked for."""
        return (self.chip.given_at if self.chip else None) or self.created_at


def spec_in(chip: Chip) -> DeploymentSpec | None:
    """Read what a VM's metadata says was asked for."""
    try:
        return DeploymentSpec.model_validate_json(chip.spec_json)
    except ValidationError:
        return None


def is_internal(spec: DeploymentSpec | None) -> bool:
    """Whether nobody outside its network is let in."""
    return spec is not None and spec.access == "internal"


def has_tls(kept: Kept | None, spec: DeploymentSpec | None) -> bool:
    """Whether its engine answers by TLS; of one that another machine made it is taken so."""
    return kept.blueprint.tls if kept else not is_internal(spec)


def url_of(seen: Look) -> str | None:
    """Give where it answers; None before it has an address, or where it has none for outside."""
    if seen.chip is None or not seen.chip.external_ip or is_internal(seen.spec):
        return None
    scheme = "https" if has_tls(seen.kept, seen.spec) else "http"
    return f"{scheme}://{seen.chip.external_ip}:{PORT}"


def expires_at(seen: Look) -> datetime | None:
    """Give when it ends, by whichever comes first: the cloud's hand, our label, or the time that
    it was to run.

    The label was written when the chip was asked for, and allows for the wait.
    """
    kept, chip = seen.kept, seen.chip
    if chip is None:
        return None
    label = chip.labels.get(EXPIRES_LABEL, "")
    said = datetime.fromtimestamp(int(label), UTC) if label.isdigit() and int(label) else None
    seconds = kept.blueprint.run_seconds if kept else None
    over = chip.given_at + timedelta(seconds=seconds) if seconds and chip.given_at else None
    return min((moment for moment in (chip.ends_at, said, over) if moment), default=None)


def deployment(
    seen: Look,
    state: State,
    since: datetime,
    *,
    phase: Phase | None = None,
    failure: Failure | None = None,
    ended: datetime | None = None,
) -> Deployment:
    """Make the record of a deployment in some state; `ended` is when its VM was no more."""
    spec, chip, site = seen.spec, seen.chip, seen.site
    runs = chip is not None and chip.state is ChipState.RUNNING
    until = ended or (None if chip is None or chip.state in _UNTIL_UNKNOWN else seen.now)
    return Deployment(
        name=seen.name,
        target=site.target.name,
        state=state,
        since=since,
        phase=phase,
        model=spec.model if spec else "not known",
        served_model_name=spec.served_model_name if spec else "not known",
        engine=_engine(seen, spec),
        simulated=site.rehearsed,
        url=url_of(seen),
        revision=_fingerprint(seen, spec),
        instance=(chip.node or chip.id) if chip and runs else None,
        replicas=int(runs),
        created_at=seen.created_at,
        expires_at=expires_at(seen),
        usd_per_hour=spending.usd_per_hour(site, chip),
        usd_so_far=spending.usd_so_far(site, chip, until) if until else None,
        failure=failure,
        resources=resources(seen),
    )


def resources(seen: Look) -> Mapping[str, str]:
    """Give what stands behind it, in Google's own words; only what is known."""
    told = dict(_of_the_chip(seen.chip, expires_at(seen))) if seen.chip else {}
    if seen.kept:
        tried = [one for one in seen.kept.attempts if one.outcome not in {"", "GIVEN"}]
        told["gave no chip"] = "; ".join(
            f"{one.place}: {one.outcome}" for one in tried[-_PLACES_SAID:]
        )
    return {what: words for what, words in told.items() if words}


def _of_the_chip(chip: Chip, ends: datetime | None) -> Iterator[tuple[str, str]]:
    queued = chip.place.plane == "queued"
    yield "control plane", SAID[chip.place.plane]
    if queued:
        yield "queued resource", f"{chip.id} {chip.said}" if chip.said else ""
        yield "node", f"{chip.node} {chip.node_said}".strip()
    else:
        yield "instance", f"{chip.id} {chip.said}"
    yield "zone", chip.place.zone
    yield "accelerator", chip.accelerator
    yield "provisioning", chip.provisioning
    yield "external ip", chip.external_ip
    yield "internal ip", chip.internal_ip
    yield "health", chip.health
    yield "ends at", f"{ends:%F %H:%M} UTC" if ends else ""
    yield "why", chip.why


def _engine(seen: Look, spec: DeploymentSpec | None) -> str:
    name = "simulated vLLM" if seen.site.rehearsed else "vLLM"
    own = rules().engine
    asked = spec.image if spec and spec.image else own.image
    image = seen.kept.blueprint.container.image if seen.kept else asked
    return f"{name} {container.version_of(image, own.image, own.vllm) or '(version not known)'}"


def _fingerprint(seen: Look, spec: DeploymentSpec | None) -> str:
    label = seen.chip.labels.get(SPEC_LABEL, "") if seen.chip else ""
    return label or (spec.fingerprint if spec else "none")
