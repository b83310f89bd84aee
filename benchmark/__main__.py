"""`python -m benchmark`: measure, watch, compare and import from a terminal.

The exit status is 0 when a run is done, 3 when it was stopped, 130 when it was ended at once and 1
when it, or anything else, failed.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import anyio
import platformdirs
from pydantic import SecretStr

from benchmark import commandline, compare, imports, profiles, report, server
from benchmark.advice import headline
from benchmark.commandline import Lines, clock, counted
from benchmark.folder import RunFolder
from benchmark.import_audit import Claims
from benchmark.records import Progress, RunState
from benchmark.run import PATIENCE_SECONDS, End, conclude, state_of
from core import PRODUCT
from core.endpoint import Endpoint
from core.errors import Busy, NotFound, OpsError
from core.records import Access, valid
from core.settings import Settings

_STATUS: Final = {RunState.DONE: 0, RunState.STOPPED: 3, RunState.INTERRUPTED: 130}


def main(argv: Sequence[str]) -> int:
    """Run one command line; give its exit status."""
    words = commandline.parser().parse_args(argv)
    try:
        return _COMMANDS[words.command](words)
    except OpsError as exc:
        return _complain(exc)
    except KeyboardInterrupt:  # before the sweep listens for it
        return _STATUS[RunState.INTERRUPTED]


def _run(words: Namespace) -> int:
    plan = commandline.plan_from(words)
    url = commandline.base_url_from(words.url)
    key = Settings().vllm_api_key
    seen = anyio.run(_look, Access(base_url=url, api_key=key, protection="its key"), words.model)
    for said in seen.notes:
        print(said, file=sys.stderr)
    folder = profiles.make(
        _runs(words),
        base_url=url,
        plan=plan,
        subject=seen.subject,
        provenance=commandline.provenance_from(words),
    )
    return _measure(folder, key)


async def _look(access: Access, model: str | None) -> server.Seen:
    endpoint = Endpoint(access)
    try:
        return await server.look(endpoint, model)
    finally:
        await endpoint.aclose()


def _resume(words: Namespace) -> int:
    folder = _found(words)
    if folder.is_measured_now():
        raise Busy(
            f"{folder.path.name} is being measured.",
            fix="`show` says how far it is; `stop` ends it.",
        )
    folder.stop_file.unlink(missing_ok=True)
    own = folder.manifest().provenance.deployment is None
    # A deployment's key is left there by whoever started this; the environment's is another's.
    key = Settings().vllm_api_key if own and folder.credential() is None else None
    return _measure(folder, key)


def _measure(folder: RunFolder, key: SecretStr | None) -> int:
    _log_to(folder.log_file)
    print(folder.path, file=sys.stderr)
    show = Lines(sys.stdout)

    patience = PATIENCE_SECONDS * Settings().patience_scale

    async def measured() -> End:
        return await conclude(folder, show=show, key=key, patience_seconds=patience)

    end = anyio.run(measured)
    if end.error:
        return _complain(end.error)
    if end.reason:
        print(end.reason, file=sys.stderr)
    if end.state in {RunState.DONE, RunState.STOPPED}:
        _tell(folder)
    return _STATUS[end.state]


def _tell(folder: RunFolder) -> None:
    """Print what the run answers, and where its page is."""
    print(f"Best: {headline(folder.manifest(), folder.cells()).sentence}")
    print(folder.page_file)


def _log_to(file: Path) -> None:
    """Keep what is said, a traceback above all: a sweep may have no terminal."""
    logging.basicConfig(filename=file, format="%(asctime)s %(levelname)s %(message)s", force=True)

    def broke(
        kind: type[BaseException], exc: BaseException, traceback: TracebackType | None
    ) -> None:
        logging.getLogger(__name__).critical("It broke.", exc_info=(kind, exc, traceback))
        sys.__excepthook__(kind, exc, traceback)

    sys.excepthook = broke


def _stop(words: Namespace) -> int:
    folder = _found(words)
    if folder.is_measured_now():
        folder.stop_file.touch()
        print(f"{folder.path.name} was asked to stop.")
    else:
        print(f"{folder.path.name} is not being measured: it is {state_of(folder).state}.")
    return 0


def _show(words: Namespace) -> int:
    folder = _found(words)
    folder.forget_credential()
    print(_state(folder.path.name, state_of(folder)))
    print(report.brief(folder.manifest(), folder.cells()))
    return 0


def _report(words: Namespace) -> int:
    folder = _found(words)
    report.write_all(folder)
    _tell(folder)
    return 0


def _list(words: Namespace) -> int:
    for manifest in sorted(_runs(words).glob("*/manifest.json")):
        folder = RunFolder(manifest.parent)
        folder.forget_credential()
        print(_state(folder.path.name, state_of(folder)))
    return 0


def _state(name: str, progress: Progress) -> str:
    why = f" {progress.reason}" if progress.reason else ""
    return f"{name} {progress.state} {counted(progress)}{clock(progress.elapsed_seconds)}{why}"


def _compare(words: Namespace) -> int:
    runs = [compare.load(_folder_of(words, run)) for run in words.runs]
    path = words.file or _runs(words) / compare.file_name(compare.names(runs))
    made = compare.write_comparison(runs, path)
    print(made.summary())
    print(path)
    return 0


def _import(words: Namespace) -> int:
    said = {n: v for n, v in vars(words).items() if n in Claims.model_fields and v is not None}
    manifests = sorted(_runs(words).glob("*/manifest.json"), reverse=True)
    others = list(imports.earlier(RunFolder(each.parent) for each in manifests))
    imported = imports.import_file(words.file, claims=valid(Claims, said), others=others)
    folder = RunFolder(_runs(words) / imported.manifest.run_id)
    imports.save_import(imported, folder)
    report.write_all(folder)
    for note in imported.notes:
        print(note, file=sys.stderr)
    _tell(folder)
    return 0


def _found(words: Namespace) -> RunFolder:
    return _folder_of(words, words.run)


def _folder_of(words: Namespace, run: str) -> RunFolder:
    for path in (Path(run).expanduser(), _runs(words) / run):
        if (path / "manifest.json").exists():
            return RunFolder(path)
    raise NotFound(f"There is no run {run}.", fix="`list` shows those that there are.")


def _runs(words: Namespace) -> Path:
    """Give the folder of all runs: the server's own, unless another was named."""
    if words.folder:
        return Path(words.folder).expanduser()
    state = Settings().vllm_devops_state_dir or platformdirs.user_state_path(PRODUCT)
    return state / "real" / "benchmarks"


def _complain(error: OpsError) -> int:
    for part in (error.summary, error.cause, error.fix):
        if part:
            print(part, file=sys.stderr)
    return 1


_COMMANDS: Final[Mapping[str, Callable[[Namespace], int]]] = {
    "run": _run,
    "resume": _resume,
    "stop": _stop,
    "show": _show,
    "report": _report,
    "list": _list,
    "compare": _compare,
    "import": _import,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
