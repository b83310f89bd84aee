"""`advise`, `compare` and `calibrate`, for a terminal."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import platformdirs
from pydantic import ValidationError

from core import PRODUCT
from core.errors import DiskFull, InvalidArgument
from core.journal import Journal
from core.records import valid
from core.settings import Settings
from planner.advise import Advice, advise
from planner.calibrate import Calibration, Fitted, Offset, calibrate
from planner.compare import compare, table
from planner.goal import Goal
from planner.offers import Offer, Refusal
from planner.pairs import DecodePair, KvPair, kept

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


def add_to(commands: Any) -> None:
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
    text = f"{table(found)}\n{found.summary()}"
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
