"""What a run was, in words: its name, its ground, and how to do it again."""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from benchmark.advising.headline import Headline
from benchmark.records import Arrivals, CellResult, Limits, Load
from benchmark.reporting.tables import load_order
from benchmark.reporting.tally import tally
from benchmark.runs import Manifest
from benchmark.wording import figure, percent, seconds

_NOT_KNOWN: Final = "not known"
_TOOL_ONLY: Final = frozenset({"target", "name"})


def imported_from(manifest: Manifest) -> str | None:
    """Name the tool whose results these are; None where we measured."""
    return manifest.host.versions.get("tool")


def name(manifest: Manifest) -> str:
    """Name the run; what must be known before any figure is in it."""
    said = caveats(manifest)
    return f"Benchmark of {manifest.subject.model}" + (f": {said}" if said else "")


def caveats(manifest: Manifest) -> str:
    """Say what must be known before any figure is read; nothing of a run like any other."""
    tool = imported_from(manifest)
    kinds = (
        (tool, f"imported from {tool}, not measured here"),
        (manifest.subject.simulated, "SIMULATED ENGINE, no hardware was measured"),
        (manifest.plan.profile == "article", "THE ARTICLES' METHOD, which no decision can rest on"),
    )
    return "; ".join(words for holds, words in kinds if holds)


def validity(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    """Say in one sentence how much of the run may be believed."""
    found = tally(manifest, cells)
    planned = "" if found.planned is None else f" of {found.planned:,} planned"
    others = f"{found.skipped:,} skipped, {found.failed:,} failed"
    if not found.measured:
        return f"No cell was measured: {found.decided:,}{planned} decided, {others}."
    relative = f"{found.relative:,} relative only, " if found.relative else ""
    return (
        f"{found.valid:,} of {found.measured:,} measured cells are valid "
        f"({found.marked:,} of them marked), {relative}{found.spoiled:,} spoiled; {others}; "
        f"{found.decided:,}{planned} decided."
    )


def answer(manifest: Manifest, said: Headline) -> tuple[tuple[str, str], ...]:
    """Return what a reader wants first, by name: what was found, on what and for how much."""
    ground = manifest.provenance
    count = f"{ground.accelerator_count} x " if ground.accelerator_count else ""
    hourly = f"${ground.usd_per_hour:g} per hour" if ground.usd_per_hour is not None else ""
    rows = (
        ("Latency there", said.latency),
        ("Recommended load", said.recommended),
        ("How far to trust it", said.trust[0].upper() + said.trust[1:]),
        ("Model", manifest.subject.model),
        ("Accelerator", f"{count}{ground.accelerator}" if ground.accelerator else _NOT_KNOWN),
        ("Target", ground.target or _NOT_KNOWN),
        ("Price", ", ".join(part for part in (hourly, said.price) if part) or _NOT_KNOWN),
    )
    return tuple((name, words) for name, words in rows if words)


def limits_in_words(limits: Limits) -> str:
    """Say what was good enough; nothing where nothing was said."""
    said = ((word, getattr(limits, f"{word.lower()}_seconds")) for word in ("TTFT", "TPOT", "E2EL"))
    return ", ".join(f"{word} ≤ {seconds(value)}" for word, value in said if value is not None)


def facts(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Give everything of the manifest that is known, as names and plain text."""
    ours = () if imported_from(manifest) else (*_method(manifest), *_host(manifest))
    rows = (*_subject(manifest), *_ground(manifest), *_plan(manifest), *ours)
    return tuple((title, said) for title, said in rows if said)


def _subject(manifest: Manifest) -> Iterator[tuple[str, str]]:
    subject = manifest.subject
    yield "Run", f"{manifest.run_id}, {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}"
    yield "Model", subject.model
    yield (
        "Engine",
        f"vLLM {subject.vllm_version or 'of unknown version'}"
        + (", simulated" if subject.simulated else ""),
    )
    yield "Longest request", f"{subject.max_model_len:,} tokens" if subject.max_model_len else ""
    if subject.cache:
        known = subject.cache.model_dump(exclude_none=True)
        yield "KV cache", ", ".join(f"{key} {value}" for key, value in known.items())


def _ground(manifest: Manifest) -> Iterator[tuple[str, str]]:
    ground = manifest.provenance
    yield "Endpoint", manifest.base_url
    yield "Target", ground.target or ""
    yield (
        "Deployment",
        " ".join(
            part
            for part in (
                ground.deployment,
                f"revision {ground.revision}" if ground.revision else "",
            )
            if part
        ),
    )
    count = f"{ground.accelerator_count} x " if ground.accelerator_count else ""
    yield "Accelerator", f"{count}{ground.accelerator}" if ground.accelerator else ""
    if ground.usd_per_hour is not None:
        source = f", {ground.price_source}" if ground.price_source else ", source not stated"
        yield "Price", f"${ground.usd_per_hour:g} per hour{source}"


def _plan(manifest: Manifest) -> Iterator[tuple[str, str]]:
    plan, work = manifest.plan, manifest.plan.workload
    length = "exactly" if work.fixed_output else "up to"
    yield "Measured by", imported_from(manifest) or ""
    yield "Profile", plan.profile
    yield "Request", f"{work.api}, {length} {work.output_tokens:,} output tokens"
    yield "Limits", limits_in_words(plan.limits)


def _method(manifest: Manifest) -> Iterator[tuple[str, str]]:
    work, stop = manifest.plan.workload, manifest.plan.stop
    prompts = work.dataset or "made token by token"
    same = percent(work.prefix_share)
    yield "Prompts", f"{prompts}, {same} the same for all, seed {work.seed}"
    least, most = figure(stop.min_seconds), figure(stop.max_seconds)
    width = percent(stop.relative_half_width)
    yield "A cell ends", f"after {least} to {most} s, when the 95 % interval is within ± {width}"
    yield "A request is given up", f"after {figure(stop.request_timeout_seconds)} s"


def _host(manifest: Manifest) -> Iterator[tuple[str, str]]:
    host = manifest.host
    yield (
        "Client",
        (
            f"{host.system}, {host.cpu}, {host.cores} cores, {figure(host.memory_gib)} GiB, "
            f"Python {host.python}"
        ),
    )
    yield "Client's versions", ", ".join(f"{key} {value}" for key, value in host.versions.items())


def arguments(manifest: Manifest) -> dict[str, object]:
    """Give what to call `run_benchmark` with for the same run."""
    plan, ground = manifest.plan, manifest.provenance
    loads = sorted(plan.loads, key=load_order)
    wanted: dict[str, object | None] = {
        "profile": plan.profile,
        "target": ground.target,
        "name": ground.deployment,
        "contexts": list(plan.contexts),
        **_loads(loads),
        "output_tokens": plan.workload.output_tokens,
        "dataset": plan.workload.dataset,
        "cell_seconds": plan.stop.max_seconds,
        "workers": plan.workers,
        "max_cost_usd": plan.max_cost_usd,
        "max_minutes": plan.max_minutes,
    }
    for word in ("ttft", "tpot", "e2el"):
        limit = getattr(plan.limits, f"{word}_seconds")
        wanted[f"{word}_ms"] = None if limit is None else limit * 1000
    return {key: value for key, value in wanted.items() if value is not None}


def _loads(loads: Sequence[Load]) -> dict[str, object | None]:
    users = [load.concurrency for load in loads if load.concurrency]
    rates = [load.requests_per_second for load in loads if load.requests_per_second]
    arrivals = loads[0].arrivals if loads else Arrivals.CLOSED
    closed = arrivals in {Arrivals.CLOSED, Arrivals.ONCE}
    return {
        "concurrencies": users or None,
        "requests_per_second": rates or None,
        "arrivals": None if closed else arrivals.value,
    }


def again(manifest: Manifest) -> str:
    """Write the call that does the run again, as one line."""
    if imported_from(manifest):
        return f"import_benchmark(file=...)  # {manifest.base_url}"
    words = (f"{key}={json.dumps(value)}" for key, value in arguments(manifest).items())
    return f"run_benchmark({', '.join(words)})"


def again_rows(manifest: Manifest) -> tuple[tuple[str, str | None], ...]:
    """Return how an agent and how a person does the run again."""
    return (
        ("Again, by an agent", again(manifest)),
        ("Again, from a shell", command(manifest)),
    )


def command(manifest: Manifest) -> str | None:
    """Write the command that does it again from a shell; None for what was imported."""
    if imported_from(manifest):
        return None
    work, ground = manifest.plan.workload, manifest.provenance
    wanted = {
        "url": manifest.base_url,
        "model": manifest.subject.model,
        **{key: value for key, value in arguments(manifest).items() if key not in _TOOL_ONLY},
        "api": work.api,
        "prefix_share": work.prefix_share,
        "seed": work.seed,
        "accelerator": ground.accelerator,
        "accelerator_count": ground.accelerator_count,
        "usd_per_hour": ground.usd_per_hour,
    }
    words = (_option(key, value) for key, value in wanted.items() if value is not None)
    return shlex.join(["python", "-m", "benchmark", "run", *chain.from_iterable(words)])


def _option(key: str, value: object) -> tuple[str, str]:
    several = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"--{key.replace('_', '-')}", several
