"""The sweeps that have a name, and a run's folder made from what is wanted."""

import math
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import psutil

from benchmark import workload
from benchmark.cluster import require_ray
from benchmark.folder import RunFolder, room
from benchmark.records import (
    OPEN_LOOPS,
    Arrivals,
    Host,
    Limits,
    Manifest,
    Profile,
    Provenance,
    RunPlan,
    StopRule,
    Subject,
    Workload,
)
from core import PRODUCT, VERSION
from core.environment import processor, read_toml
from core.errors import InvalidArgument
from core.records import Record, valid

PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)
_BYTES_PER_TOKEN: Final = 4
"""Of English text; only to name the row of a dataset, whose prompts are as long as they are."""
_ARTICLE_KEEPS: Final = (
    "requests_per_second",
    "output_tokens",
    "dataset",
    "cell_seconds",
    "prefix_share",
    "api",
)
"""What would make it another method than the articles'."""
_OF_PROMPTS: Final = ("contexts", "prefix_share")
"""What a dataset decides by its prompts."""
_WORK: Final = ("output_tokens", "dataset", "seed", "prefix_share", "api")
_RUN: Final = ("workers", "max_cost_usd", "max_minutes")
_CLUSTER: Final = ("cluster", "nodes", "insecure_cluster")
_KNOWN: Final = frozenset(
    {"contexts", "concurrencies", "requests_per_second", "arrivals", "cell_seconds", "limits"}
    | set(_WORK)
    | set(_RUN)
    | set(_CLUSTER)
)


class _Named(Record):
    """One table of `profiles.toml`."""

    why: str
    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    arrivals: Arrivals = Arrivals.CLOSED
    output_tokens: int
    fixed_output: bool = True
    prefix_share: float = 0.0
    stop_saturated: bool = True
    stop: StopRule


@cache
def _named() -> dict[str, _Named]:
    rows = read_toml(Path(__file__).with_name("profiles.toml"))
    return {name: _Named.model_validate(row) for name, row in rows.items()}


def plan_of(profile: Profile = "quick", **overrides: Any) -> RunPlan:
    """Make a plan: a profile with what a person changes of it; what is None changes nothing.

    Overrides are contexts and output_tokens (in tokens), concurrencies, requests_per_second with
    arrivals (poisson, constant, bursts), dataset (a file), cell_seconds (the longest window),
    limits (a mapping of `Limits`), seed, prefix_share, api, workers, max_cost_usd, max_minutes;
    cluster (`auto` or ray://HOST:10001), with nodes and insecure_cluster.

    Raises:
        InvalidArgument: It cannot be measured so.
    """
    asked = {name: value for name, value in overrides.items() if value is not None}
    _check_names(profile, asked)
    named = _named()[profile]
    own = named.model_dump(include={"output_tokens", "fixed_output", "prefix_share"})
    work = own | {name: asked[name] for name in _WORK if name in asked}
    digest: str | None = None
    if "dataset" in asked:
        contexts, digest, read = _of_dataset(asked)
        work |= read
    else:
        contexts = _ascending("contexts", asked.get("contexts", named.contexts))
    plan = valid(
        RunPlan,
        {
            "profile": profile,
            "contexts": contexts,
            "loads": _loads(named, asked),
            "workload": valid(Workload, work).model_dump(),
            "dataset_sha256": digest,
            "stop": _stop(named, asked),
            "limits": valid(Limits, dict(asked.get("limits", {}))).model_dump(),
            "stop_saturated": named.stop_saturated,
            **{name: asked[name] for name in _RUN if name in asked},
            "cluster": _cluster(asked),
        },
    )
    _check_values(plan)
    return plan


COMMAND_ONLY: Final = frozenset({"seed", "prefix_share", "api", "insecure_cluster"})
"""What only the command takes; a run that a tool began has it of its dataset, or not at all."""


def overrides_of(plan: RunPlan) -> dict[str, Any]:
    """Give the overrides of which `plan_of` makes this plan of its profile, but for its limits."""
    loads, work, cluster = plan.loads, plan.workload, plan.cluster
    said: dict[str, Any] = {
        "contexts": list(plan.contexts),
        "concurrencies": sorted({load.concurrency for load in loads if load.concurrency}),
        "requests_per_second": sorted({r for load in loads if (r := load.requests_per_second)}),
        "arrivals": next((str(each.arrivals) for each in loads if each.requests_per_second), None),
        "cell_seconds": plan.stop.max_seconds,
        **work.model_dump(include=set(_WORK)),
        **plan.model_dump(include=set(_RUN)),
        "cluster": cluster and cluster.address,
        "nodes": cluster and cluster.nodes,
        "insecure_cluster": cluster and cluster.insecure,
    }
    decided: tuple[str, ...] = _ARTICLE_KEEPS if plan.profile == "article" else ()
    decided += _OF_PROMPTS if work.dataset else ()
    return {name: value for name, value in said.items() if value and name not in decided}


def _check_names(profile: str, asked: Mapping[str, Any]) -> None:
    if profile not in PROFILES:
        raise InvalidArgument(
            f"There is no profile {profile!r}.", fix=f"Profiles: {', '.join(PROFILES)}."
        )
    unknown = sorted(set(asked) - _KNOWN)
    if unknown:
        raise InvalidArgument(
            f"A plan has no {', '.join(unknown)}.", fix=f"It has {', '.join(sorted(_KNOWN))}."
        )
    changed = [name for name in _ARTICLE_KEEPS if name in asked]
    if profile == "article" and changed:
        raise InvalidArgument(
            f"The articles' method has its own {', '.join(changed)}.",
            fix="Leave that out, or take another profile.",
        )


def _of_dataset(asked: Mapping[str, Any]) -> tuple[tuple[int], str, dict[str, Any]]:
    """Give the row that a dataset is named by, what tells its prompts from others, and what they
    decide of the workload.
    """
    for name in _OF_PROMPTS:
        if name in asked:
            raise InvalidArgument(
                "Prompts of a dataset are as long as they are, and share what they share.",
                fix=f"Leave out {name}, or the dataset.",
            )
    path = Path(asked["dataset"]).expanduser().resolve()
    entries = workload.read(path)
    chats = any(entry.kind == "messages" for entry in entries)
    api = asked.get("api") or ("chat" if chats else "completion")
    workload.require_askable(entries, api)
    mean_bytes = sum(len(entry.prompt) for entry in entries) / len(entries)
    return (
        (max(1, round(mean_bytes / _BYTES_PER_TOKEN)),),
        workload.sha256(entries),
        {
            "dataset": str(path),
            "api": api,
            "prefix_share": round(workload.shared(entries), 3),
        },
    )


def _loads(named: _Named, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    rates, users = asked.get("requests_per_second"), asked.get("concurrencies")
    arrivals = str(asked.get("arrivals", Arrivals.POISSON))
    if rates is None:
        # Poisson is what open loops are if nothing is said, so it alone asks for nothing.
        if arrivals in {Arrivals.CONSTANT, Arrivals.BURSTS}:
            raise InvalidArgument(
                f"Arrivals that are {arrivals} need a rate.", fix="Give requests_per_second."
            )
        several = _ascending("concurrencies", named.concurrencies if users is None else users)
        return [{"arrivals": named.arrivals, "concurrency": each} for each in several]
    if arrivals not in OPEN_LOOPS:
        raise InvalidArgument(
            f"Requests cannot come {arrivals!r} at a rate.",
            fix=f"Arrivals are {', '.join(OPEN_LOOPS)}.",
        )
    if (arrivals == Arrivals.BURSTS) != bool(users):
        raise InvalidArgument(
            "Bursts have a size and a rate; other loads have users or a rate, not both.",
            fix="Give concurrencies with arrivals=bursts, and leave them out of other open loops.",
        )
    return [
        {"arrivals": arrivals, "requests_per_second": rate, "concurrency": burst}
        for burst in (_ascending("concurrencies", users) if users else (None,))
        for rate in _ascending("requests_per_second", rates)
    ]


def _cluster(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    address = asked.get("cluster")
    if address is None:
        if asked.get("nodes") or asked.get("insecure_cluster"):
            raise InvalidArgument(
                "Only a cluster has nodes.", fix="Give cluster: auto, or ray://HOST:10001."
            )
        return None
    url = urlsplit(address)
    named = url.scheme == "ray" and url.hostname and not (url.path or url.query or url.username)
    if address != "auto" and not named:
        raise InvalidArgument(
            f"{address[:100]!r} is no address of a Ray cluster.",
            fix="Give auto, on a machine that belongs to it, or ray://HOST:10001.",
        )
    require_ray()
    return {
        "address": address if address == "auto" or url.port else f"{address}:10001",
        "nodes": asked.get("nodes"),
        "insecure": bool(asked.get("insecure_cluster")),
    }


def _stop(named: _Named, asked: Mapping[str, Any]) -> StopRule:
    longest = asked.get("cell_seconds")
    if longest is None:
        return named.stop
    if not (longest > 0 and math.isfinite(longest)):
        raise InvalidArgument(f"cell_seconds cannot be {longest}.", fix="Give a number above 0.")
    return named.stop.model_copy(
        update={
            "max_seconds": float(longest),
            "min_seconds": min(named.stop.min_seconds, longest),
            "warmup_max_seconds": min(named.stop.warmup_max_seconds, longest),
        }
    )


def _check_values(plan: RunPlan) -> None:
    if plan.profile == "find-capacity" and plan.limits == Limits():
        raise InvalidArgument(
            "A capacity is the highest load within limits, and none was given.",
            fix="Give at least one: the longest TTFT, TPOT or E2EL that is good enough.",
        )
    first = plan.loads[0]
    sizes = (first.concurrency is None) + (first.requests_per_second is None)
    if plan.profile == "find-capacity" and sizes != 1:
        raise InvalidArgument(
            f"A capacity is not looked for in {first.arrivals}.",
            fix="Begin at a concurrency, or at a rate with poisson or constant arrivals.",
        )


def _ascending(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if not values or any(not value > 0 for value in values):
        raise InvalidArgument(f"The {name} cannot be {list(values)}.", fix="Give some above 0.")
    return tuple(sorted(set(values)))


_MEASURE: Final = ("uvloop", "httptools", "orjson", "numpy", "pyarrow")
_GIB: Final = 2**30


def describe() -> Host:
    return Host(
        system=platform.platform(terse=True),
        cpu=processor(),
        cores=cores(),
        memory_gib=round(psutil.virtual_memory().total / _GIB, 1),
        python=platform.python_version(),
        versions={PRODUCT: VERSION} | {name: version(name) for name in _MEASURE},
    )


def cores() -> int:
    """Give how many cores this process may use."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return len(process.cpu_affinity())
    return psutil.cpu_count() or 1


_NO_PROVENANCE: Final = Provenance()


def make(
    runs: Path,
    *,
    base_url: str,
    plan: RunPlan,
    subject: Subject,
    provenance: Provenance = _NO_PROVENANCE,
) -> RunFolder:
    """Make a new run's folder below `runs`, with its manifest; nothing is measured yet.

    Raises:
        InvalidArgument: It must stop at a cost, and nobody knows the price.
        DiskFull: It cannot be written.
    """
    if plan.max_cost_usd is not None and provenance.usd_per_hour is None:
        raise InvalidArgument(
            "A run cannot stop at a cost where no price is known.",
            fix="Say what an hour costs, or give max_minutes instead.",
        )
    now = datetime.now(UTC)
    named = provenance.deployment or subject.model.rsplit("/", 1)[-1]
    slug = re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")[:40].strip("-") or "model"
    path = claim(runs, f"{now:%Y%m%d-%H%M%S}-{plan.profile}-{slug}")
    folder = RunFolder(path)
    folder.create(
        Manifest(
            run_id=path.name,
            created_at=now,
            base_url=base_url,
            plan=plan,
            subject=subject,
            provenance=provenance,
            host=describe(),
        )
    )
    return folder


def claim(runs: Path, name: str) -> Path:
    """Make the folder: of two that begin in the same second, only one gets the name."""
    with room(runs):
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = runs / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):
                path.mkdir()
                return path
    raise InvalidArgument(f"{runs} has a thousand runs of this second.", fix="Name another folder.")
