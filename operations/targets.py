"""The places where a model can run: their names, their regions and what each lacks."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from backends.base import NamesEngine, Predicts
from core.environment import read_toml
from core.errors import InvalidArgument, TargetNotFound
from core.records import SIMULATED, Answer, Target, listed
from operations.forecast import accelerator_name, dollars, grouped, usd
from operations.runtime import Runtime
from planner.places import Place, place, places
from planner.price import price

_REGIONS: Final = Path(__file__).with_name("regions.toml")
_ALSO: Final = {"eu": "europe", "usa": "us", "america": "us", "united states": "us"}
_SETTINGS: Final = {"azure": "AZURE_LOCATION", "google": "GOOGLE_CLOUD_LOCATION"}
_BY_INVITATION: Final = "("
_SHOWN: Final = 6
"""Regions, or targets, that one sentence names."""


def within(where: Place, region: str) -> tuple[str, ...]:
    """Return the regions of a place that `europe`, `eu`, `us-east5` or a full name means.

    >>> from planner.places import place
    >>> within(place("cloud-run-l4"), "eu")
    ('europe-west1', 'europe-west4')
    >>> within(place("aca-a100"), "Europe")
    ('italynorth', 'swedencentral')
    """
    wanted = region.strip().lower()
    wanted = _ALSO.get(wanted, wanted).replace(" ", "")
    names = (wanted, *read_toml(_REGIONS).get(wanted, ()))
    found = [one for one in where.regions if one.startswith(names)]
    return tuple(sorted(found, key=lambda one: _BY_INVITATION in one))


def limited_to(where: Place, region: str | None) -> Place:
    """Return the place with those of its regions alone.

    Raises:
        InvalidArgument: It has none there.
    """
    if not region or where.provider == "own":
        return where
    if found := within(where, region):
        return where.model_copy(update={"regions": found})
    raise _nowhere(where.name, [where], region)


def in_region(names: Sequence[str], region: str | None) -> tuple[str, ...]:
    """Return those of these places that have a region there; all, where none is said.

    Raises:
        InvalidArgument: None has.
    """
    known = places()
    found = tuple(name for name in names if region is None or within(known[name], region))
    if found:
        return found
    raise _nowhere(", ".join(names[:_SHOWN]), [known[name] for name in names], region or "")


def _nowhere(what: str, sites: Sequence[Place], region: str) -> InvalidArgument:
    """Say that there is none, with those that are on the same continent first."""
    near = region.strip().lower().partition("-")[0]
    names = {one.partition(" ")[0] for where in sites for one in where.regions}
    known = sorted(names, key=lambda one: (not one.startswith(near), one))
    some = listed(known, most=_SHOWN) or "none that is known"
    return InvalidArgument(
        f"{what}: no region in {region}, as far as is known here; there is {some}.",
        fix=f"Give one of {', '.join(known)}; or europe, us, asia."
        if known
        else "Name another target.",
    )


def goes_to(runtime: Runtime, where: Place) -> tuple[str, str | None]:
    """Return the region of a deployment, and what must be set first so that it goes there."""
    names = [one.partition(" ")[0] for one in where.regions]
    if not names or where.deployable_by == "tpu":
        return names[0] if names else "", None
    setting, target = _SETTINGS[where.provider], runtime.stage.targets.get(where.name)
    now = getattr(runtime.settings, setting.lower()) or (target and target.region)
    if now in names:
        return now, None
    return names[0], f"set {setting}={names[0]} for this server"


def check(runtime: Runtime, target: str, region: str, zones: list[str] | None) -> list[str] | None:
    """Return the zones to look in, so that a deployment goes to the region or nowhere.

    Raises:
        InvalidArgument: The target has none there, or this server is set to another region.
    """
    where = limited_to(place(target), region)
    _, todo = goes_to(runtime, where)
    if todo:
        raise InvalidArgument(
            f"{target} would go to another region than {region}.",
            fix=f"{todo[0].upper()}{todo[1:]}, and start it again; or leave `region` out.",
        )
    return zones or zones_of(where) or None


def zones_of(where: Place) -> list[str]:
    """Return the zones to look for a chip in; none where a target has regions instead."""
    return list(where.regions) if where.deployable_by == "tpu" else []


_SCHEMES: Final = {
    "gs": "gcs-streamed",
    "files": "azure-files",
    "baked": "baked",
    "hub:disk": "hub",
    "hub:share": "azure-files",
}
"""Rows of `planner/boot.toml` by what `weights` begins with."""


def read_from(where: Place, weights: str | None) -> Place:
    """Return the place with its weights where a deployment's `weights` say."""
    source = _SCHEMES.get((weights or "").partition("://")[0])
    if source is None:
        return where
    return where.model_copy(update={"weights_from": source, "hub_disk_gib": None})


def place_named(
    runtime: Runtime,
    target: str | None,
    *,
    own_image: bool = False,
    weights: str | None = None,
    compile_cache: str | None = None,
) -> Place:
    """Give the place that a plan is for: the named one, `VLLM_TARGET`, else this machine.

    Which vLLM an image of one's own has, nobody knows; weights that are given are read from there.
    The bucket of `BUCKET_NAME` keeps what Google's compile, unless `compile_cache` is off.

    Raises:
        TargetNotFound: No place has that name.
    """
    where = read_from(place_called(target or runtime.settings.vllm_target or "local"), weights)
    if own_image:
        where = where.model_copy(update={"vllm_version": None})
    none = compile_cache == "off" or (weights or "").startswith("files://")  # which is only read
    if none or (where.provider == "google" and runtime.settings.bucket_name):
        where = where.model_copy(update={"keeps_compiled": not none})
    if where.name not in runtime.stage.targets:
        return where
    backend = runtime.stage.backend(where.name)
    here = backend.hardware_known() if isinstance(backend, Predicts) else None
    if here is None:
        return where
    device, count = here
    found = {"accelerator": device.name, "own_device": device, "count": count}
    return where.model_copy(update=found)


def place_called(name: str) -> Place:
    """Give a place by name, refused as every tool refuses a wrong target.

    Raises:
        TargetNotFound: No place has that name.
    """
    try:
        return place(name)
    except InvalidArgument as exc:
        raise TargetNotFound(exc.summary, fix=exc.fix) from exc


class TargetRow(Target):
    """A target and what would serve on it."""

    hardware: str | None = None
    """Of one replica: accelerator, processors, memory, disk and network."""
    engine: str
    look_seconds: float = Field(default=0.0, exclude=True)
    gpu: str | None = Field(default=None, exclude=True)
    """Accelerators and their memory, in a few words."""
    may_cost_more: bool = Field(default=False, exclude=True)
    """The price is that of its smallest host, or the lowest of sources that disagree."""
    regions: tuple[str, ...] = ()
    """As far as they are known."""
    missing: str | None = None
    """What must be done before it can be used."""
    simulated: bool = Field(default=False, exclude=True)
    """Its engine is."""


class Targets(Answer):
    """Every target that is configured."""

    targets: tuple[TargetRow, ...]
    default: str | None
    """The one used where a call names none."""

    def summary(self) -> str:
        ready = [row.name for row in self.targets if not row.missing]
        words = f"{len(self.targets)} targets, {len(ready)} configured: {', '.join(ready)}"
        lacks = [(_lacking(row), row.name) for row in self.targets if row.missing]
        said = (f"{len(names)} {todo}" for todo, names in grouped(lacks).items())
        return "; ".join((words, *said)) + "."

    def facts(self) -> Mapping[str, Any]:
        return {row.name: _line(row) for row in self.targets} | {"default": self.default}

    def warnings(self) -> tuple[str, ...]:
        return (SIMULATED,) if any(row.simulated for row in self.targets) else ()


def _lacking(row: TargetRow) -> str:
    return f"need {row.needs.upper()}" if row.needs else f"({row.name}): {row.missing}".rstrip(".")


def _line(row: TargetRow) -> str:
    least = "from " if row.may_cost_more else ""
    costs = None if row.usd_per_hour is None else f"{least}{dollars(row.usd_per_hour)}/h"
    sleeps = "sleeps when idle" if row.min_replicas == 0 else "bills until deleted"
    words = (
        row.gpu,
        "no bill" if row.usd_per_hour == 0 else costs,
        sleeps if row.usd_per_hour else None,
        row.region,
        "not configured" if row.missing else None,
    )
    return ", ".join(word for word in words if word) or row.description


async def list_all(runtime: Runtime) -> Targets:
    """Give every target."""
    stage = runtime.stage
    rows = []
    for target in stage.targets.values():
        backend = stage.backend(target.name)
        named = backend.engine_name() if isinstance(backend, NamesEngine) else ("your own", "")
        simulated = named[1] == SIMULATED
        lacks = None if simulated else named[1] or None
        said = {"engine": named[0], "missing": lacks, "simulated": simulated}
        hourly, there = _of_place(target.name)
        known: dict[str, Any] = {}
        if there:
            where = places()[target.name]
            count = f"{where.count} x " if where.count > 1 else ""
            own = target.usd_per_hour
            known = {
                "usd_per_hour": usd(hourly if own is None else own),
                "hardware": there,
                "gpu": f"{count}{accelerator_name(where.device)}",
                "may_cost_more": own is None and (len(where.sizes) > 1 or price(where).disagree),
                "regions": where.regions,
            }
        rows.append(TargetRow(**{**target.model_dump(), **said, **known}))
    names = stage.usable
    default = stage.settings.vllm_target or (names[0] if len(names) == 1 else None)
    return Targets(targets=tuple(rows), default=default)


@cache
def _of_place(name: str) -> tuple[float | None, str | None]:
    """Give what does not change while a server lives: every agent's first call asks for it."""
    where = places().get(name)
    if where is None or not where.sizes:
        return None, None
    return price(where).usd_per_hour, hardware(where)


def hardware(where: Place) -> str:
    """Say what one replica has there."""
    device = where.device
    sizes = " or ".join(f"{size.vcpu} vCPU and {size.ram_gib} GiB" for size in where.sizes)
    known = (
        f"{device.memory_gib} GiB visible of {device.sold_gib:g}" if device.memory_gib else "",
        f"{device.bandwidth_gb_per_s:,.0f} GB/s" if device.bandwidth_gb_per_s else "",
        f"{device.tflops_bf16:g} TFLOPS bf16" if device.bf16 and device.tflops_bf16 else "",
        f"{device.tflops_bf16:g} TFLOPS fp16" if not device.bf16 and device.tflops_bf16 else "",
    )
    each = ", ".join(word for word in known if word)
    return (
        f"{where.count} x {device.title} ({each}); {sizes}; disk: {where.disk}; "
        f"network: {where.network}"
    )


_CLOUDS: Final = {
    "aws": "aws", "amazon": "aws",
    "gcp": "google", "google": "google", "google cloud": "google",
    "azure": "azure", "microsoft": "azure",
}  # fmt: skip
_TPUS: Final = frozenset({"tpu", "tpus", "cloud tpu"})
_SILENT: Final = frozenset({"cloud", "google", "tpu", "gpu", "nvidia", "azure", "a", "the", "on"})
"""Words that do not tell one place from another."""


def widened(targets: Sequence[str]) -> tuple[str, ...]:
    """Return the names of places that these words mean, each once; none for none.

    Raises:
        TargetNotFound: No place has that name.
    """
    return tuple(dict.fromkeys(name for words in targets for name in _places_meant(words)))


def _places_meant(words: str) -> tuple[str, ...]:
    """Return a whole cloud's places, or the one with these words in whatever order."""
    wanted, telling = words.strip().lower(), _telling(words)
    several = tuple(
        name
        for name, where in places().items()
        if where.provider == _CLOUDS.get(wanted)
        or (wanted in _TPUS and where.deployable_by == "tpu")
    )
    found = (name for name in places() if telling and _telling(name) == telling)
    return several or (next(found, None) or place_called(words).name,)


def _telling(words: str) -> frozenset[str]:
    return frozenset(words.lower().replace("-", " ").split()) - _SILENT
