"""`python -m planner` for a terminal: advise, compare, calibrate, fit and judge."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import platformdirs
from pydantic import ValidationError

from core import PRODUCT
from core.errors import DiskFull, InvalidArgument
from core.journal import Journal
from core.records import KvPlan, MemoryPlan, ModelShape, valid
from core.settings import Settings
from planner.advise import Advice, Goal, Offer, Refusal, advise
from planner.calibrate import Calibration, DecodePair, Fitted, KvPair, Offset, calibrate, kept
from planner.compare import compare
from planner.compare import table as compare_table
from planner.flags import Flags, size_in_bytes
from planner.memory import plan_memory
from planner.model import read_hub_model, read_model
from planner.places import Accelerator, accelerator, accelerators
from planner.speed import judge

_WIDTH: Final = 60


class _Share(NamedTuple):
    mark: str
    name: str
    gib: float


def table(plan: MemoryPlan) -> Iterator[str]:
    """Give the verdict, a bar, what it is made of, and what the cache would hold."""
    head = f"{plan.model} on {plan.count} x {plan.accelerator}, vLLM {plan.vllm_version}"
    yield f"{head}: {'fits' if plan.fits else 'DOES NOT FIT'}"
    yield from (f"  ! {reason}" for reason in plan.reasons)
    yield ""
    yield f"  {bar(plan)}"
    for share in _shares(plan):
        yield f"  {share.mark} {share.name:<22}{share.gib:8.2f} GiB"
    if plan.visible_gib is not None:
        requested = plan.requested_gib or 0.0
        yield f"    {'visible':<22}{plan.visible_gib:8.2f} GiB, of which {requested:.2f} requested"
    yield f"    {'at the loading peak':<22}{plan.load_peak_gib:8.2f} GiB"
    yield ""
    yield from _cache(plan)
    yield from (f"  note: {warning}" for warning in plan.warnings)


def bar(plan: MemoryPlan) -> str:
    """Draw one accelerator's memory, from weights to what nobody uses."""
    shares = list(_shares(plan))
    total = max(plan.visible_gib or 0.0, sum(share.gib for share in shares)) or 1.0
    ends, at = [], 0.0
    for share in shares:
        at += share.gib
        ends.append(round(at / total * _WIDTH))
    begins = [0, *ends[:-1]]
    drawn = "".join(
        share.mark * (end - begin) for share, begin, end in zip(shares, begins, ends, strict=True)
    )
    return f"[{drawn:.<{_WIDTH}}]"


def work_gib(plan: MemoryPlan) -> float:
    """Give what one accelerator needs beside weights and cache, as vLLM profiles it."""
    return sum(part.gib.expected for part in plan.parts if part.name in _WORK)


def _shares(plan: MemoryPlan) -> Iterator[_Share]:
    chips = plan.count if plan.kv_is_shared else 1
    yield _Share("#", "weights", plan.weights_gib)
    yield _Share("+", "work (profiled)", work_gib(plan))
    yield _Share("=", "KV cache", plan.kv_cache_gib.expected / chips)


_WORK: Final = frozenset(
    {"activations", "sampler", "vision encoder", "experts' workspace"}
    | {"CUDA graphs", "libraries", "fused all-reduce", "processes"}
)


def _cache(plan: MemoryPlan) -> Iterator[str]:
    kv, gib = plan.kv_expected, plan.kv_cache_gib
    yield f"  KV cache {gib.low:.2f} to {gib.high:.2f} GiB, expected {gib.expected:.2f}:"
    yield f"    {kv.num_blocks:,} blocks, {kv.kv_tokens:,} tokens"
    yield f"    {kv.max_concurrency:.2f} requests of {plan.max_model_len:,} tokens at once"
    yield f"    longest request that surely fits: {plan.kv_low.max_len_that_fits:,} tokens"


_OPTIONS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "--quality": (str, "small, medium or large, where no model is named"),
    "--max-model-len": (int, "tokens of the longest prompt and its answer"),
    "--users": (int, "requests of that length at once"),
    "--tokens-per-second-per-user": (float, "what each of them must get"),
    "--usd-per-hour": (float, "the most that may be paid"),
    "--usd-per-month": (float, "the most that may be paid"),
    "--hours-per-month": (float, "in which it runs; 730 is always"),
    "--layout": (str, "speed, concurrency or context"),
    "--prompt-tokens": (int, "of a usual request"),
    "--output-tokens": (int, "of a usual answer"),
    "--vllm-version": (str, "the newest known, left out"),
}
"""Options that are fields of the goal."""
_CALIBRATE: Final = "What kept pairs of predicted and actual would change in speed.toml."
_HEADER: Final = "# Measured here: written by `python -m planner calibrate --write`."
_WHERE: Final = (
    "To plan with them, put the rows of [constants] into planner/speed.toml in place of its own; "
    "nothing reads [kv_offsets] yet.\n"
)
_PLACE: Final = "only there; again for another; left out, everywhere"
_DEPLOYABLE: Final = "a backend that you have: say of each offer whether one of them deploys there"
_DEPLOYABILITY: Final[dict[str, Any]] = {
    offers: {"__all__": {"deployable"}} for offers in ("offers", "elsewhere", "instead")
}


def add_commands(commands: Any) -> None:
    """Say what the commands take."""
    parser = _parser(commands, "advise", "Where to run a model, with which flags, and why.")
    parser.add_argument("model", nargs="?", help="a Hub id, a short name such as `12b qat`")
    parser.add_argument("--deployable", action="append", metavar="BACKEND", help=_DEPLOYABLE)
    parser.set_defaults(run=run_advise)
    parser = _parser(commands, "compare", "Models and places side by side, with speed and price.")
    parser.add_argument("models", nargs="+", help="Hub ids, or short names such as `12b-qat`")
    parser.set_defaults(run=run_compare)
    parser = commands.add_parser("calibrate", help=_CALIBRATE, description=_CALIBRATE)
    parser.add_argument("--state-dir", type=Path, help="left out, VLLM_DEVOPS_STATE_DIR or yours")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a file of its own for the rows")
    parser.add_argument("--json", action="store_true", help="every figure, for a program")
    parser.set_defaults(run=run_calibrate)


def run_advise(arguments: argparse.Namespace) -> int:
    """Print where to run a model; 0 if anywhere, 1 if nowhere."""
    backends: Collection[str] | None = arguments.deployable
    advice = advise(_goal(arguments), backends=backends or ())
    # Without names nobody has said what can be deployed to.
    hidden = None if backends else _DEPLOYABILITY
    as_json = advice.model_dump_json(indent=2, exclude=hidden) if arguments.json else None
    lines = () if as_json else _advice_lines(advice, told=bool(backends))
    sys.stdout.write((as_json or "\n".join(lines)) + "\n")
    return 0 if advice.offers else 1


def run_compare(arguments: argparse.Namespace) -> int:
    """Print models and places side by side; 0 if any fits, 1 if none."""
    found = compare(arguments.models, arguments.places, _goal(arguments))
    text = f"{compare_table(found)}\n{found.summary()}"
    sys.stdout.write((found.model_dump_json(indent=2) if arguments.json else text) + "\n")
    return 0 if any(row.fits for row in found.rows) else 1


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Print what would change in `speed.toml`; 0 if anything was learned, else 1."""
    journal = Journal(journal_path(arguments.state_dir), read_only=True)
    found = calibrate(kept(journal, DecodePair), kept(journal, KvPair))
    rows = as_toml(found)
    text = found.model_dump_json(indent=2) if arguments.json else rows
    sys.stdout.write(f"{text}\n" if text else "")
    sys.stderr.write(f"{found.summary()}\n")
    if not (found.fitted or found.kv_offsets):
        return 1
    if arguments.write:
        _write(arguments.write, rows)
    sys.stderr.write(_WHERE)
    return 0


def journal_path(state_dir: Path | None) -> Path:
    """Where the server keeps its journal.

    Raises:
        InvalidArgument: The environment cannot be what it is.
    """
    try:
        folder = state_dir or Settings().vllm_devops_state_dir
    except ValidationError as exc:
        words = "; ".join(f"{row['loc'][0]}: {row['msg']}" for row in exc.errors())
        raise InvalidArgument(f"These settings cannot be: {words}.", fix="Correct them.") from exc
    folder = folder or platformdirs.user_state_path(PRODUCT)
    return folder.resolve() / "real" / "journal.db"


def as_toml(found: Calibration) -> str:
    """Write rows as `speed.toml` has them; what is not a row is a comment."""
    blocks = [
        *("\n".join(_fitted_lines(each)) for each in found.fitted),
        *("\n".join(_offset_lines(each)) for each in found.kv_offsets),
        "\n".join(f"# left out: {each.what}: {each.why}" for each in found.left_out),
    ]
    return "\n\n".join(block for block in blocks if block)


def _parser(commands: Any, name: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=description, description=description
    )
    for flag, (kind, sentence) in _OPTIONS.items():
        parser.add_argument(flag, type=kind, help=sentence)
    parser.add_argument(
        "--target", action="append", default=[], dest="places", metavar="TARGET", help=_PLACE
    )
    parser.add_argument("--scale-to-zero", action="store_true", help="nothing to pay while idle")
    parser.add_argument("--text-only", action="store_true", help="no images and no sound")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    return parser


def _goal(arguments: argparse.Namespace) -> Goal:
    given = vars(arguments)
    fields = {name: given[name] for name in Goal.model_fields if given.get(name) is not None}
    return valid(Goal, fields)


def _advice_lines(advice: Advice, *, told: bool) -> Iterator[str]:
    yield advice.summary()
    for number, offer in enumerate(advice.offers, start=1):
        yield from _offer_lines(f"{number}.", offer)
        if told and not offer.deployable:
            yield "   none of the given backends deploys there"
    for refusal in advice.refused:
        yield from _refusal_lines(refusal)
    for title, offers in (("Elsewhere", advice.elsewhere), ("Instead", advice.instead)):
        for offer in offers:
            yield from _offer_lines(title, offer)


def _offer_lines(mark: str, offer: Offer) -> Iterator[str]:
    yield f"\n{mark} {offer.place} ({offer.title}): {offer.model}"
    yield f"   {offer.reason}"
    yield f"   {offer.engine_line}"
    first = f"first token after {offer.prefill.ttft_seconds} s"
    yield f"   boots in {offer.boot.seconds} s; {first} for {offer.prefill.prompt_tokens:,} tokens"
    if offer.cost:
        yield f"   ${offer.cost.usd_per_million_tokens} per million tokens under that load"
    yield from (
        f"   {change.flag}: {change.buys}; costs {change.costs}" for change in offer.changes
    )
    yield from (f"   but: {doubt}" for doubt in (*offer.doubts, *offer.warnings))


def _refusal_lines(refusal: Refusal) -> Iterator[str]:
    yield f"\nno {refusal.place}: {refusal.model}: {refusal.reason}"
    yield from (
        f"   would fit with another {near.gives_up} ({near.buys})" for near in refusal.nearest
    )
    if refusal.offload:
        yield f"   {refusal.offload.why_not}"


def _fitted_lines(found: Fitted) -> Iterator[str]:
    new, old = found.constants, found.today
    was = f"{old.effective_gb_per_s:g} GB/s, {old.layer_microseconds:g} us" if old else "nothing"
    yield f"# {found.accelerator}: speed.toml says {was}; condition {found.condition:g}"
    for each in found.residuals:
        where = f"{each.model} on {each.count}, {each.context:,} tokens"
        yield f"#   {where}: {1 / each.actual_seconds_per_token:.3g} tokens/s, {each.error:+.1%}"
    yield f"[constants.{found.accelerator}]"
    yield f"effective_gb_per_s = {new.effective_gb_per_s}"
    yield f"layer_microseconds = {new.layer_microseconds}"
    yield f"tensor_parallel = {list(new.tensor_parallel)}"
    yield f"weight_bits = {list(new.weight_bits)}"
    yield f"error = {new.error}"
    yield f'source = "{new.source}"'


def _offset_lines(found: Offset) -> Iterator[str]:
    yield f"# {found.within} of {found.pairs} lie in their predicted band"
    yield f"[kv_offsets.{found.accelerator}]"
    yield f"offset_gib = {found.offset_gib}"
    yield f"lowest_gib = {found.lowest_gib}"
    yield f"highest_gib = {found.highest_gib}"
    yield f'source = "{found.source}"'


def _write(file: Path, rows: str) -> None:
    try:
        if file.exists() and not file.read_bytes().startswith(_HEADER.encode()):
            raise InvalidArgument(
                f"calibrate did not write {file}.", fix="Name another; nothing was written."
            )
        file.write_text(f"{_HEADER}\n\n{rows}\n", "utf-8")
    except OSError as exc:
        raise DiskFull(f"{file} cannot be written: {exc}.", fix="Name another file.") from exc


_GIB: Final = 2**30
_OWN: Final = frozenset({"kv_cache_memory_bytes", "tensor_parallel_size", "hf_overrides"})
"""Flags with an argument of their own below, or none."""


def add_fit(commands: Any) -> None:
    """Say what the command takes."""
    parser = commands.add_parser("fit", help=__doc__, description=__doc__)
    parser.add_argument("model", help="a folder, a catalog name such as `12b qat`, or its Hub id")
    parser.add_argument("--accelerator", required=True, choices=list(accelerators()))
    parser.add_argument("--count", type=int, default=1, help="accelerators of that kind")
    parser.add_argument("--accelerator-memory-gib", type=float, help="instead of the usual")
    parser.add_argument("--kv-cache-memory-gib", type=float, help="instead of what would be left")
    parser.add_argument("--kv-cache-memory-bytes", help="the same in bytes, or with K, M or G")
    parser.add_argument("--tensor-parallel-size", type=int, help="left out, the count")
    parser.add_argument("--json", action="store_true", help="every figure, for a program")
    parser.add_argument(
        "--from-hub", action="store_true", help="read a few kB of the model's headers on the Hub"
    )
    parser.set_defaults(run=run_fit)
    for name, field in Flags.model_fields.items():
        if name in _OWN:
            continue
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(flag, action="store_true", default=None)
        elif bool in get_args(field.annotation):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, type=_kind(field.annotation))


def run_fit(arguments: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits, 1 if not."""
    plan = plan_memory(_model(arguments), _hardware(arguments), _flags(arguments))
    text = json.dumps(as_json(plan), indent=2) if arguments.json else "\n".join(table(plan))
    sys.stdout.write(f"{text}\n")
    return 0 if plan.fits else 1


def as_json(plan: MemoryPlan) -> dict[str, Any]:
    """Give a plan with the names that programs rely on; figures of the expected estimate."""
    kv: KvPlan = plan.kv_expected
    return {
        "model": plan.model,
        "accelerator": plan.accelerator,
        "count": plan.count,
        "fits": plan.fits,
        "reasons": list(plan.reasons),
        "warnings": list(plan.warnings),
        "weights_gib": round(plan.weights_gib, 3),
        "load_peak_gib": round(plan.load_peak_gib, 3),
        "kv_cache_gib": {
            "low": round(plan.kv_cache_gib.low, 3),
            "expected": round(plan.kv_cache_gib.expected, 3),
            "high": round(plan.kv_cache_gib.high, 3),
        },
        "num_blocks": kv.num_blocks,
        "block_size": kv.block_size,
        "kv_tokens": kv.kv_tokens,
        "max_concurrency": round(kv.max_concurrency, 4),
        "max_len_that_fits": plan.kv_low.max_len_that_fits,
        **{name: getattr(plan, name) for name in _MORE},
        "parts": [part.model_dump() for part in plan.parts],
        "derivation": [*plan.derivation, *kv.derivation],
    }


_MORE: Final = (
    "vllm_version",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "visible_gib",
    "requested_gib",
)


def _kind(annotation: Any) -> Any:
    return next((kind for kind in (int, float) if kind in get_args(annotation)), str)


def _model(arguments: argparse.Namespace) -> ModelShape:
    if arguments.from_hub:
        return read_hub_model(arguments.model, token=Settings().hf_token)
    return read_model(arguments.model)


def _hardware(arguments: argparse.Namespace) -> Accelerator:
    found = accelerator(arguments.accelerator)
    if arguments.accelerator_memory_gib is None:
        return found
    return found.model_copy(update={"memory_gib": arguments.accelerator_memory_gib})


def _flags(arguments: argparse.Namespace) -> Flags:
    ways = arguments.tensor_parallel_size or arguments.count
    if ways > arguments.count > 1:
        raise InvalidArgument(
            f"{ways} ways need {ways} accelerators, not {arguments.count}.",
            fix="Give --count at least --tensor-parallel-size.",
        )
    given = size_in_bytes(arguments.kv_cache_memory_bytes)
    if arguments.kv_cache_memory_gib is not None:
        given = int(arguments.kv_cache_memory_gib * _GIB)
    values = {name: getattr(arguments, name) for name in Flags.model_fields if name not in _OWN}
    wanted = {name: value for name, value in values.items() if value is not None}
    own = {"tensor_parallel_size": ways, "kv_cache_memory_bytes": given}
    return valid(Flags, {**wanted, **own})


def add_judge(commands: Any) -> None:
    """Say what the command takes."""
    parser = commands.add_parser("judge", help=__doc__, description=__doc__)
    parser.add_argument("model", help="a folder, a catalog name such as `12b qat`, or its Hub id")
    parser.add_argument("--accelerator", required=True, choices=list(accelerators()))
    parser.add_argument("--tokens-per-second", type=float, required=True, help="what is claimed")
    parser.add_argument("--count", type=int, default=1, help="accelerators that share the model")
    parser.add_argument("--quantization", help="as vLLM's flag: fp8 quantizes while loading")
    parser.add_argument("--cpu-offload-gb", type=float, help="of weights in the host's memory")
    parser.add_argument("--json", action="store_true", help="every figure, for a program")
    parser.set_defaults(run=run_judge)


def run_judge(arguments: argparse.Namespace) -> int:
    """Print the verdict; 1 if the claim is impossible, else 0."""
    claimed = arguments.tokens_per_second
    if not 0 < claimed < float("inf"):
        raise InvalidArgument(f"{claimed} tokens/s is no speed.", fix="Give a positive number.")
    values = {name: getattr(arguments, name) for name in ("quantization", "cpu_offload_gb")}
    flags = valid(Flags, {**values, "tensor_parallel_size": arguments.count})
    found = judge(claimed, read_model(arguments.model), accelerator(arguments.accelerator), flags)
    lines = "\n  ".join((found.reason, *found.derivation))
    sys.stdout.write((found.model_dump_json(indent=2) if arguments.json else lines) + "\n")
    return 1 if found.verdict == "impossible" else 0
