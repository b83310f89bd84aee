"""What tells runs apart, and whether they may be held against each other at all."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmark.advising.hardware import find_accelerator, flags_of, known
from benchmark.folder import RunFolder
from benchmark.records import Arrivals, CellResult
from benchmark.runs import Manifest
from core.errors import InvalidArgument
from planner.places import places

_METHOD: Final = ("api", "output_tokens", "fixed_output", "prefix_share", "dataset")
"""Of the workload; the seed may differ, prompts of one length are alike."""
_NAMED_BY: Final = ("model", "precision", "KV cache", "accelerator", "target", "cloud")
"""Axes that a person would call a run by, if they tell it from the others."""
_NOT_KNOWN: Final = "not known"


class Loaded(NamedTuple):
    """One run as its folder has it."""

    manifest: Manifest
    cells: Sequence[CellResult]
    samples: Path | None = None
    """The run's folder, if requests are kept there."""


def load(folder: RunFolder) -> Loaded:
    """Read a run to be compared.

    Raises:
        NotFound: This is no run's folder.
    """
    return Loaded(folder.manifest(), folder.cells(), folder.path)


def check_method(runs: Sequence[Loaded]) -> None:
    """Refuse runs that were measured in different ways.

    Raises:
        InvalidArgument: There are fewer than two, or workload or method differ; it says how.
    """
    if len(runs) < 2:
        raise InvalidArgument(
            "A comparison needs two runs or more.", fix="Call list_benchmarks for their ids."
        )
    methods = [_method(run.manifest) for run in runs]
    differing = [name for name in methods[0] if len({each[name] for each in methods}) > 1]
    if differing:
        words = "; ".join(
            f"{name} is "
            + ", ".join(
                f"{method[name]} in {run.manifest.run_id}"
                for method, run in zip(methods, runs, strict=True)
            )
            for name in differing
        )
        raise InvalidArgument(
            f"These runs do not measure the same: {words}.",
            fix="Run the same workload and method on both, then compare.",
            data={"differs": differing},
        )


def is_article(manifest: Manifest) -> bool:
    """Whether the run used the articles' method: one burst, its drain, mostly one token."""
    bursts = any(load.arrivals is Arrivals.ONCE for load in manifest.plan.loads)
    return manifest.plan.profile == "article" or bursts


def axes(manifest: Manifest) -> dict[str, str]:
    """Say what a run measured, in the words of a person."""
    owner, flags = manifest.provenance, flags_of(manifest)
    device, place = find_accelerator(owner.accelerator), places().get(owner.target or "")
    count = owner.accelerator_count or (place.count if place else None)
    accelerator = (device.name if device else owner.accelerator) or _NOT_KNOWN
    said = {
        "model": manifest.subject.model.rsplit("/", 1)[-1],
        "precision": _precision(manifest),
        "KV cache": flags.kv_cache_dtype or _cache_dtype(manifest) or "auto",
        "target": owner.target,
        "cloud": place.provider if place else None,
        "accelerator": f"{count} x {accelerator}" if count else accelerator,
        "tensor parallel": flags.tensor_parallel_size if owner.deployment_spec else None,
        "max_model_len": manifest.subject.max_model_len,
        "vLLM": manifest.subject.vllm_version,
        "$/h": owner.usd_per_hour,
    }
    return {name: _NOT_KNOWN if value is None else str(value) for name, value in said.items()}


def names(runs: Sequence[Loaded]) -> tuple[str, ...]:
    """Call each run by what tells it from the others, as short as that allows."""
    every = [axes(run.manifest) for run in runs]
    telling = [name for name in _NAMED_BY if len({each[name] for each in every}) > 1]
    for number in range(1, len(telling) + 1):
        called = [", ".join(each[name] for name in telling[:number]) for each in every]
        if len(set(called)) == len(called):
            return tuple(called)
    ids = [run.manifest.run_id for run in runs]
    return tuple(
        run_id if ids.count(run_id) == 1 else f"{run_id} ({number})"
        for number, run_id in enumerate(ids, start=1)
    )


def file_name(called: Sequence[str]) -> str:
    """Name a comparison's file after its runs.

    >>> file_name(["4 x v6e", "1 x v6e"])
    '4_x_v6e_vs_1_x_v6e_comparison.md'
    """
    slugs = [re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_.") for name in called]
    return "_vs_".join(slug[:40] for slug in slugs[:3]) + "_comparison.md"


def chips(manifest: Manifest) -> int | None:
    """Give how many accelerators a run had."""
    place = places().get(manifest.provenance.target or "")
    return manifest.provenance.accelerator_count or (place.count if place else None)


def _method(manifest: Manifest) -> Mapping[str, Any]:
    workload = manifest.plan.workload
    arrivals = sorted({load.arrivals.value for load in manifest.plan.loads})
    return {
        **{name: getattr(workload, name) for name in _METHOD},
        "arrivals": " and ".join(arrivals),
        "article method": is_article(manifest),
    }


def _precision(manifest: Manifest) -> str | None:
    flags, ground = flags_of(manifest), known(manifest)
    if flags.quantization:
        return flags.quantization
    if ground is None:
        return None
    bits = ground.model.quantization_bits
    return f"{bits}-bit {ground.model.quantization}" if bits else (ground.model.dtype or "bf16")


def _cache_dtype(manifest: Manifest) -> str | None:
    return manifest.subject.cache.cache_dtype if manifest.subject.cache else None
