"""How long a deployment takes until it answers, phase by phase."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from core.environment import read_toml
from core.errors import InvalidArgument
from core.records import ModelShape, Record, valid
from planner.flags import Flags
from planner.places import Place, accelerator

_FILE: Final = Path(__file__).with_name("boot.toml")
_NO_RATE: Final = frozenset({"outbound", "load", "why"})
_KEEP_DISK: Final = frozenset({"own", "machine"})
"""Hosts whose disk a later start finds as the one before left it; a container's is new."""
_STORES: Final = frozenset({"gcs-fuse", "gcs-streamed", "azure-files"})
"""Sources of weights beside which there is room for what was compiled."""


class Span(Record):
    """Seconds, or MiB per second, as far as they can be foreseen."""

    low: float
    expected: float
    high: float
    source: str
    title: str = ""

    def __str__(self) -> str:
        """Say it for a person."""
        return f"{self.expected:,.0f} ({self.low:,.0f}-{self.high:,.0f})"


class BootPhase(Record):
    """One step of a boot."""

    name: Literal["host and image", "engine start", "weights", "compile", "graphs"]
    seconds: Span


class Boot(Record):
    """A boot, from the request to the first answer."""

    place: str
    weights_from: str
    phases: tuple[BootPhase, ...]
    seconds: Span
    """Of all phases, at a first start."""
    again: Span | None
    """Of a later start: compiled code is there, and on the same disk files as well. None where a
    start finds neither."""
    budget_seconds: int | None
    """That the place's startup probe allows; None where nothing ends a boot."""
    within_budget: Literal["yes", "probably", "probably not", "no"]
    """By the high, the expected and the low estimate; the host is not in the probe's time."""
    advice: str


def boot(model: ModelShape, place: Place, flags: Flags, *, weights_from: str | None = None) -> Boot:
    """Foresee a boot; the source of the weights, left out, is the place's usual one.

    Raises:
        InvalidArgument: Nobody knows the source, or how large the model is.
    """
    source = weights_from or source_of(model, place)
    host, engine = valid(Span, read_toml(_FILE)["hosts"][_host(place)]), _engine(place, flags)
    spans = {
        "host and image": host,
        "engine start": engine.pop("start"),
        "weights": _loading(model, place, source),
        **engine,
    }
    inside = total(span for span in spans.values() if span is not host)
    return Boot(
        place=place.name,
        weights_from=source,
        phases=tuple(valid(BootPhase, {"name": name, "seconds": spans[name]}) for name in spans),
        seconds=total(spans.values()),
        again=_again(model, place, source, spans),
        budget_seconds=place.startup_seconds_max,
        within_budget=within(inside, place.startup_seconds_max),
        advice=_advice(inside, place, source),
    )


def source_of(model: ModelShape, place: Place) -> str:
    """Return where the weights of a model come from at a place when nobody says."""
    gib = stored_bytes(model) / 2**30
    return "hub" if 0 < gib <= (place.hub_disk_gib or 0) else place.weights_from


class Loader(Record):
    """How vLLM is told to read weights, and why so."""

    args: tuple[str, ...] = ()
    why: str = (
        "the files are on the machine's own disk by then, where vLLM's default is the fastest"
    )

    def __str__(self) -> str:
        return f"{' '.join(self.args) or 'default'}: {self.why}"


def loader(source: str) -> Loader:
    """Return how weights from a source are read: a row of `boot.toml`."""
    row = read_toml(_FILE)["sources"].get(source, {})
    return Loader(args=tuple(row["load"]), why=row["why"]) if "load" in row else Loader()


def stored_bytes(model: ModelShape) -> int:
    """Bytes of a model's files, 0 where nobody knows."""
    return model.weight_bytes or sum(group.stored_bytes for group in model.groups)


def file_bytes(model: ModelShape) -> int:
    """Bytes of a model's files.

    Raises:
        InvalidArgument: Nobody knows.
    """
    size = stored_bytes(model)
    if not size:
        raise InvalidArgument(
            f"How large the files of {model.model} are is not known.",
            fix="Give a model of the catalog, or a folder with its safetensors.",
        )
    return size


def outbound_limit(place: Place, source: str) -> float | None:
    """Return the MiB per second that a place lets through from a source; None is no limit."""
    limited = read_toml(_FILE)["sources"].get(source, {}).get("outbound", False)
    return place.outbound_mib_per_second if limited else None


def _loading(model: ModelShape, place: Place, source: str) -> Span:
    rows = read_toml(_FILE)["sources"]
    if source not in rows:
        raise InvalidArgument(
            f"Nothing is known of weights from {source}.", fix=f"Use one of {', '.join(rows)}."
        )
    row = {name: value for name, value in rows[source].items() if name not in _NO_RATE}
    rate, mib, most = valid(Span, row), file_bytes(model) / 2**20, outbound_limit(place, source)
    if most:
        ends = {end: min(getattr(rate, end), most) for end in ("low", "expected", "high")}
        why = f"at most {most:g} MiB/s leave an instance without Direct VPC; {rate.source}"
        rate = rate.model_copy(update={**ends, "source": why})
    return Span(
        low=mib / rate.high,
        expected=mib / rate.expected,
        high=mib / rate.low,
        source=f"{mib / 1024:.2f} GiB from {rate.title} at {rate} MiB/s: {rate.source}",
    )


def _host(place: Place) -> str:
    if accelerator(place.accelerator).kind == "tpu":
        return "tpu"
    if place.provider in {"own", "azure"}:
        return place.provider
    return "google-serverless" if place.scale_to_zero else "machine"


def _engine(place: Place, flags: Flags) -> dict[str, Span]:
    kind = accelerator(place.accelerator).kind
    row = f"{kind}-eager" if flags.enforce_eager and kind != "tpu" else kind
    return {name: valid(Span, span) for name, span in read_toml(_FILE)["engine"][row].items()}


def _again(model: ModelShape, place: Place, source: str, first: dict[str, Span]) -> Span | None:
    """Foresee a start that finds what the one before it left, on its disk or carried to it."""
    host, store = _host(place), place.keeps_compiled
    spans = dict(first)
    if host in _KEEP_DISK:
        spans["weights"] = _loading(model, place, "local-disk")
    elif "compile" not in spans or not (source in _STORES if store is None else store):
        return None
    if host == "machine":  # one that is there takes none
        del spans["host and image"]
    if "compile" in spans:
        kind = accelerator(place.accelerator).kind
        spans["compile"] = valid(Span, read_toml(_FILE)["compiled_before"][kind])
    return total(spans.values())


def total(spans: Iterable[Span]) -> Span:
    """Add the seconds of several phases up."""
    low, expected, high = (
        sum(ends)
        for ends in zip(*((one.low, one.expected, one.high) for one in spans), strict=True)
    )
    return Span(low=low, expected=expected, high=high, source="the sum of its phases")


def within(seconds: Span, budget: int | None) -> Literal["yes", "probably", "probably not", "no"]:
    """Say whether it ends in time: by the slowest, the usual and the fastest that is foreseen."""
    if budget is None or seconds.high <= budget:
        return "yes"
    if seconds.expected <= budget:
        return "probably"
    return "probably not" if seconds.low <= budget else "no"


def _advice(seconds: Span, place: Place, source: str) -> str:
    budget = place.startup_seconds_max
    if budget is None:
        return "Nothing there ends a slow boot; poll /health."
    if seconds.high <= budget:
        return f"A startup probe of {round(seconds.high + 60, -1):,.0f} s covers the slowest boot."
    faster = "stream the weights (--load-format runai_streamer)"
    if outbound_limit(place, source):
        faster = "read them from a bucket through Direct VPC (weights=gs://…, network=…)"
    return (
        f"The probe allows {budget:,} s and the boot takes {seconds} s: {faster} or take a smaller"
        " checkpoint."
    )
