"""Analyses that a model still reads, kept while the server lives and as files beside it."""

import contextlib
import fcntl
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

import anyio
from pydantic import ValidationError

from benchmark.folder import replace
from core.errors import EndpointError, NotFound
from core.redaction import redact
from operations.analysis.records import Analysis
from operations.analyst.candidates import Candidate
from operations.analyst.reading import Reading
from operations.analyst.words import Case, Words
from operations.runtime import Runtime

TOTAL_SECONDS: Final = 900.0
"""For all that a model says of one case: 1,800 tokens of one that makes 2 a second."""
_MOST_FILES: Final = 20
_AT_ONCE: Final = 4
_ID: Final = re.compile(r"analysis-[0-9a-f]{8}")


class Work:
    """One analysis that is under way or done."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self.reading: Reading | None = None
        self.done: Final = anyio.Event()

    @property
    def analysis(self) -> Analysis:
        """Give it with the words that have been said so far."""
        words = self.reading.words() if self.reading else None
        return self._analysis.model_copy(update={"words": words})

    def end(self, *, silence: str | None, ended: bool) -> None:
        """Say that no more words come."""
        state = "ended" if ended else "done"
        self._analysis = self._analysis.model_copy(update={"state": state, "silence": silence})
        self.done.set()


_HELD: Final[WeakKeyDictionary[Runtime, dict[str, Work]]] = WeakKeyDictionary()
"""By server: several may live in one process, as they do in tests."""


def begin(
    runtime: Runtime, analysis: Analysis, case: Case, candidates: Sequence[Candidate]
) -> Work:
    """Let a model read in the background; the server's end ends it.

    More than a few at once would take the accelerator from those whom the model serves.
    """
    held = _HELD.setdefault(runtime, {})
    if sum(not one.done.is_set() for one in held.values()) >= _AT_ONCE:
        busy = Work(analysis)
        silence = f"No model reads this: {_AT_ONCE} analyses are being read already."
        busy.end(silence=silence, ended=False)
        return busy
    name = f"analysis-{secrets.token_hex(4)}"
    work = Work(analysis.model_copy(update={"operation": name, "state": "running"}))
    held[name] = work
    while len(held) > _MOST_FILES:
        del held[next(iter(held))]

    async def read() -> None:
        silence, ended = None, True
        with _file(runtime, name) as path:
            _write(runtime, path, work.analysis)
            try:
                silence = await _read(work, case, candidates)
                ended = False
            finally:
                work.end(silence=silence, ended=ended)
                _write(runtime, path, work.analysis)

    runtime.background.start(name, read)
    return work


async def waited(work: Work, seconds: float) -> Analysis:
    """Give it when its words are complete, or as it is when the time is over."""
    with anyio.move_on_after(seconds):
        await work.done.wait()
    return work.analysis


async def find(runtime: Runtime, name: str, seconds: float) -> Analysis:
    """Give an analysis by its operation id, after a wait if it is this server's.

    Raises:
        NotFound: There is none of that id.
    """
    work = _HELD.get(runtime, {}).get(name)
    if work:
        return await waited(work, seconds)
    found = _from_file(_folder(runtime) / f"{name}.json") if _ID.fullmatch(name) else None
    if found is None:
        raise NotFound(
            f"There is no operation {name[:60]!r}.",
            fix="Leave `operation` out for a new analysis.",
        )
    if found.state == "running" and not _is_held(_folder(runtime) / f"{name}.lock"):
        return found.model_copy(update={"state": "ended"})
    return found


async def _read(work: Work, case: Case, candidates: Sequence[Candidate]) -> str | None:
    """Let the first that can read it; give why there are no words, None where there are."""
    why: list[str] = []
    with anyio.move_on_after(TOTAL_SECONDS) as limit:
        for one in candidates:
            work.reading = Reading(one.label, case)
            try:
                async with one.opened() as endpoint:
                    await work.reading.run(endpoint, one.model)
            except EndpointError as exc:
                why.append(f"{one.label}: {exc.summary} {exc.cause}".strip())
            if _says(work.reading.words()):
                break
    if limit.cancelled_caught:
        why.append(f"It had not ended after {TOTAL_SECONDS:.0f} s.")
    return _silence(why, work.reading.words() if work.reading else None)


def _silence(why: Sequence[str], words: Words | None) -> str | None:
    if words and _says(words):
        return f"Not everything worked: {' '.join(why)}"[:600] if why else None
    told = " ".join(why) or "It said nothing that cites a line."
    return f"No model's words: {told}"[:600]


def _says(words: Words) -> bool:
    return bool(words.claims or words.advice)


def _folder(runtime: Runtime) -> Path:
    return runtime.stage.folder / "analyses"


@contextmanager
def _file(runtime: Runtime, name: str) -> Iterator[Path | None]:
    """Hold an analysis' file while its model reads; None on a server that only looks."""
    folder = _folder(runtime)
    with contextlib.ExitStack() as stack:
        path: Path | None = None
        with contextlib.suppress(OSError):  # a full disk costs the file, not the words
            if not runtime.settings.read_only:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _forget_old(folder)
                lock = stack.enter_context((folder / f"{name}.lock").open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path = folder / f"{name}.json"
        yield path


def _write(runtime: Runtime, path: Path | None, analysis: Analysis) -> None:
    if path:
        text = analysis.model_validate(
            redact(analysis.model_dump(mode="json"), runtime.secrets)
        ).model_dump_json()
        with contextlib.suppress(OSError):
            replace(path, text, mode=0o600)


def _from_file(path: Path) -> Analysis | None:
    try:
        return Analysis.model_validate_json(path.read_text("utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def _forget_old(folder: Path) -> None:
    files = sorted(folder.glob("analysis-*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[: -_MOST_FILES + 1]:
        lock = file.with_suffix(".lock")
        if not _is_held(lock):
            file.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    """Whether a living server holds it."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
