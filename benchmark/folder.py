"""A run's folder: its files are the truth about it, whoever reads them."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from pydantic import SecretStr, ValidationError

from benchmark.records import CellResult, Manifest, Progress
from core.errors import Busy, DiskFull, NotFound
from core.records import wrong
from core.reply import note

_PRIVATE: Final = 0o600


class RunFolder:
    """`manifest.json`, `cells.jsonl`, `progress.json`, `samples/`, and the reports."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.manifest_file: Final = path / "manifest.json"
        """Written once, before the sweep begins."""
        self.cells_file: Final = path / "cells.jsonl"
        """One `CellResult` on each line, in the order in which they were decided."""
        self.progress_file: Final = path / "progress.json"
        """Replaced about every second."""
        self.credential_file: Final = path / "credential"
        """Only while the run needs it, and only its owner's to read."""
        self.certificate_file: Final = path / "certificate.pem"
        """The one certificate to trust, of an endpoint that signs for itself; no secret."""
        self.stop_file: Final = path / "stop"
        """Its presence asks the sweep to end with what there is."""
        self.log_file: Final = path / "log.txt"
        """What the sweep and its workers said."""
        self.csv_file: Final = path / "benchmark_results.csv"
        """Tidy: one row for each cell."""
        self.report_file: Final = path / "benchmark_report.md"
        self.chart_file: Final = path / "benchmark_chart.png"
        self.page_file: Final = path / "report.html"
        """One self-contained interactive page."""
        self.parts: Final = path / "parts"
        """What workers hand over, while a cell is measured."""

    def samples_file(self, cell: str) -> Path:
        return self.path / "samples" / f"{cell}.parquet"

    def renew_parts(self) -> None:
        with room(self.path):
            shutil.rmtree(self.parts, ignore_errors=True)
            self.parts.mkdir(exist_ok=True)

    def create(self, manifest: Manifest) -> None:
        with room(self.path):
            (self.path / "samples").mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        replace(self.manifest_file, manifest.model_dump_json(indent=2))

    def manifest(self) -> Manifest:
        """Read what the run is.

        Raises:
            NotFound: This is no run's folder.
        """
        try:
            return Manifest.model_validate_json(self.manifest_file.read_bytes())
        except (OSError, ValidationError) as exc:
            raise NotFound(
                f"{self.path.name} is no benchmark run.",
                fix="Call list_benchmarks for those that there are.",
                cause=_why_unread(self.manifest_file, exc)[:300],
            ) from exc

    def cells(self) -> tuple[CellResult, ...]:
        """Read the cells that were decided, of one that was measured again the last."""
        return tuple({cell.spec: cell for cell in self.every_cell()}.values())

    def every_cell(self) -> tuple[CellResult, ...]:
        """Read all of them in order, those that were measured again as well.

        A note says how many of them nobody can read.
        """
        try:
            lines = list(filter(None, self.cells_file.read_bytes().split(b"\n")[:-1]))
        except FileNotFoundError:
            return ()
        found = []
        for line in lines:
            with contextlib.suppress(ValidationError):
                found.append(CellResult.model_validate_json(line))
        if strange := len(lines) - len(found):
            note(
                f"{strange} of {len(lines)} cells of {self.path.name} are left out: their lines in"
                f" {self.cells_file.name} are damaged, or of another version."
            )
        return tuple(found)

    def add(self, cell: CellResult) -> None:
        """Write one cell so that it survives a kill."""
        with room(self.path), self.cells_file.open("ab+") as file:
            _drop_torn_line(file.fileno())
            file.write(cell.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def progress(self) -> Progress | None:
        """Read how far it is; None where nothing, or nothing that can be read, says so."""
        with contextlib.suppress(FileNotFoundError, ValidationError):
            return Progress.model_validate_json(self.progress_file.read_bytes())
        return None

    def tell(self, progress: Progress) -> None:
        replace(self.progress_file, progress.model_dump_json())

    def keep_credential(self, key: SecretStr | None, identity: SecretStr | None = None) -> None:
        """Leave key and identity token for the workers, a line each; none takes them away."""
        if key is None and identity is None:
            for file in self.credential_files():
                file.unlink(missing_ok=True)
            return
        lines = [secret.get_secret_value() if secret else "" for secret in (key, identity)]
        replace(self.credential_file, "\n".join(lines).rstrip("\n"), mode=_PRIVATE)

    def credential_files(self) -> tuple[Path, ...]:
        """Return where a credential is now, halves that a kill left of one included."""
        return tuple(self.path.glob(f".{self.credential_file.name}.*")) + (
            (self.credential_file,) if self.credential_file.exists() else ()
        )

    def forget_credential(self) -> bool:
        """Take away what a killed run left of its credential; whether none is left.

        A run that is measured, or just beginning, keeps its own.
        """
        if not self.credential_files():
            return True
        try:
            with beginning(self.path.parent), self.locked():
                self.keep_credential(None)
        except Busy:
            return False
        return True

    def keep_certificate(self, pem: str | None) -> None:
        """Leave the one certificate that is to be trusted, if the endpoint signs for itself.

        Raises:
            DiskFull: There is no room for it.
        """
        if pem is None:
            self.certificate_file.unlink(missing_ok=True)
        else:
            replace(self.certificate_file, pem)

    def certificate(self) -> str | None:
        try:
            return self.certificate_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def credential(self) -> str | None:
        return self._credentials()[0]

    def identity(self) -> str | None:
        return self._credentials()[1]

    def _credentials(self) -> tuple[str | None, str | None]:
        try:
            key, _, identity = self.credential_file.read_text(encoding="utf-8").partition("\n")
        except FileNotFoundError:
            return None, None
        return key or None, identity or None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who measures here; the lock goes with the process.

        Raises:
            Busy: Another process measures.
        """
        with (self.path / "lock").open("a") as file:
            if not _flocked(file, fcntl.LOCK_EX):
                raise Busy(
                    f"{self.path.name} is being measured by another process.",
                    fix="Call get_benchmark to watch it, or stop_benchmark to end it.",
                )
            yield

    def is_measured_now(self) -> bool:
        try:
            file = (self.path / "lock").open("rb")
        except FileNotFoundError:
            return False
        with file:
            return not _flocked(file, fcntl.LOCK_SH)


@contextlib.contextmanager
def beginning(runs: Path) -> Iterator[None]:
    """Begin one run at a time below a folder: until it is measured, its own lock is nobody's.

    Raises:
        Busy: Another one is just beginning.
        DiskFull: The folder cannot be written.
    """
    with room(runs):
        runs.mkdir(parents=True, exist_ok=True)
        file = (runs / ".beginning").open("a")
    with file:
        if not _flocked(file, fcntl.LOCK_EX):
            raise Busy("Another benchmark is just beginning.", fix="Try again in some seconds.")
        yield


def _flocked(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def replace(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file whole or not at all.

    Raises:
        DiskFull: There is no room for it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with room(path.parent):
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def _why_unread(file: Path, exc: OSError | ValidationError) -> str:
    """Say in one line what is wrong with a file that a run keeps."""
    if isinstance(exc, OSError):
        return f"{file.name}: {exc.strerror or exc}."
    return f"{file.name} is damaged, or of another version: {wrong(exc)}."


def _drop_torn_line(handle: int) -> None:
    """Cut off what follows the last line end: a kill came while it was written."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, size, 0)
    whole = tail.rfind(b"\n") + 1
    if whole != size:
        os.ftruncate(handle, whole)


@contextlib.contextmanager
def room(path: Path) -> Iterator[None]:
    """Raise DiskFull where something below the path cannot be written."""
    try:
        yield
    except OSError as exc:
        raise DiskFull(
            f"{path.name} cannot be written.",
            fix="Make room there; `resume` goes on at the cell that was lost.",
            cause=str(exc),
        ) from exc
