"""Other people's results in our form, audited: whatever tool wrote them."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from pydantic import ValidationError

from benchmark import import_formats
from benchmark.folder import RunFolder
from benchmark.import_audit import Run, audit
from benchmark.import_cells import Claims, Imported, Read, slug
from benchmark.records import (
    CellResult,
    Host,
    Load,
    Manifest,
    Progress,
    Provenance,
    RunPlan,
    RunState,
    Subject,
)
from core.errors import InvalidArgument, NotFound
from planner.model import full_name

_MOST_BYTES: Final = 64 * 2**20
"""guidellm can keep every request in its report; parsed, it takes ten times its size."""
_JSON_FORMS: Final = (
    SimpleNamespace(
        LOOKED_FOR=import_formats.GUIDELLM_LOOKED_FOR,
        read=import_formats.read_guidellm,
        reads=import_formats.is_guidellm,
    ),
    SimpleNamespace(
        LOOKED_FOR=import_formats.AIPERF_LOOKED_FOR,
        read=import_formats.read_aiperf,
        reads=import_formats.is_aiperf,
    ),
)
_LOOKED_FOR: Final = "; ".join(
    form.LOOKED_FOR
    for form in (
        SimpleNamespace(LOOKED_FOR=import_formats.TABLE_LOOKED_FOR, read=import_formats.read_table),
        *_JSON_FORMS,
    )
)
_UNKNOWN: Final = "not known"
_COMPARED: Final = 50
"""Other imports that a new one is held against."""


def import_file(path: Path, *, claims: Claims, others: Sequence[Run] = ()) -> Imported:
    """Read a file of another tool and audit it; `others` are runs that it may be a copy of.

    Raises:
        InvalidArgument: It cannot be read, or is of no form that is known; it says what was
            looked for.
    """
    text = _text(path)
    read = _read(text, path, claims)
    if not read.cells:
        raise InvalidArgument(
            f"{path.name} has no row that could be a cell.", fix=f"Give {_LOOKED_FOR}."
        )
    manifest = _manifest(path, read, claims)
    said = claims.model_copy(
        update={"model": claims.model or read.model, "output_tokens": read.workload.output_tokens}
    )
    # A file that is imported again is no copy of itself.
    strange = [other for other in others if other.run_id != manifest.run_id]
    cells = audit(read.cells, said, others=strange)
    return Imported(manifest, cells, (*read.notes, *_not_said(read, claims)))


def save_import(imported: Imported, folder: RunFolder) -> None:
    """Write it as a run that is done, to be reported and compared like ours.

    Raises:
        DiskFull: It cannot be written.
    """
    folder.create(imported.manifest)
    folder.cells_file.unlink(missing_ok=True)
    for cell in imported.cells:
        folder.add(cell)
    folder.tell(
        Progress(
            state=RunState.DONE,
            reason="imported, not measured here",
            cells_done=len(imported.cells),
            cells_total=len(imported.cells),
            elapsed_seconds=0.0,
            updated_at=imported.manifest.created_at,
        )
    )


def earlier(folders: Iterable[RunFolder]) -> Iterator[Run]:
    """Give the first imports among some runs: it is among them that copies are found."""
    found = 0
    for folder in folders:
        if found == _COMPARED:
            return
        try:
            manifest = folder.manifest()
        except NotFound:
            continue
        if manifest.host.versions.get("tool"):
            found += 1
            called = f"{manifest.run_id} ({manifest.subject.model})"
            yield Run(called, folder.cells(), manifest.run_id)


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device has no end
            raise _unreadable(path, "It is no regular file.")
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(
                f"{path.name} has more than {_MOST_BYTES // 2**20} MiB.",
                fix="Leave out the single requests when you write it.",
            )
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as exc:  # ValueError: a name that no file can have, or no UTF-8
        raise _unreadable(path, str(exc)) from exc


def _unreadable(path: Path, cause: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path.name} cannot be read as text.", fix=f"Give {_LOOKED_FOR}.", cause=cause
    )


def _read(text: str, path: Path, claims: Claims) -> Read:
    try:
        documents = list(_documents(text))
        for form in _JSON_FORMS:
            if form.reads(documents):
                found: Read = form.read(documents, claims)
                return found
        rows = (
            import_formats.from_documents(documents) if documents else import_formats.from_csv(text)
        )
        if rows is not None:
            return import_formats.read_table(rows, claims)
    except (csv.Error, ArithmeticError, RecursionError, ValidationError) as exc:
        raise InvalidArgument(
            f"{path.name} holds figures that no benchmark can have.",
            fix=f"Give {_LOOKED_FOR}.",
            cause=type(exc).__name__,
        ) from exc
    raise InvalidArgument(
        f"{path.name} is of no form that is read here.",
        fix=f"Give one of these: {_LOOKED_FOR}.",
        cause=_what_it_is(documents),
    )


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a file, one or one on each line; none if it is no JSON."""
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return
        yield from found


def _what_it_is(documents: Sequence[Any]) -> str:
    """Say it in general: a file that was named by mistake may hold secrets."""
    if not documents:
        return "It is neither JSON nor a CSV with those columns."
    if not isinstance(documents[0], dict):
        return f"It is JSON, but no object: {type(documents[0]).__name__}."
    return "It is JSON, with other keys."


def _manifest(path: Path, read: Read, claims: Claims) -> Manifest:
    cells, model = read.cells, claims.model or read.model
    created = read.created_at or datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Manifest(
        run_id=f"{created:%Y%m%d-%H%M%S}-import-{slug(path.stem)}",
        created_at=created,
        base_url=read.base_url or f"imported:{path.name}",
        plan=RunPlan(
            profile=read.profile,
            contexts=tuple(dict.fromkeys(c.spec.context for c in cells if c.spec.context)),
            loads=_loads(cells),
            workload=read.workload,
        ),
        subject=Subject(
            model=full_name(model) if model else _UNKNOWN, max_model_len=claims.max_model_len
        ),
        provenance=Provenance(
            target=claims.target,
            accelerator=claims.accelerator,
            accelerator_count=claims.accelerator_count,
            usd_per_hour=claims.usd_per_hour,
            price_source=None if claims.usd_per_hour is None else "said at the import",
        ),
        host=_host(read),
    )


def _loads(cells: Sequence[CellResult]) -> tuple[Load, ...]:
    return tuple(dict.fromkeys(cell.spec.load for cell in cells))


def _host(read: Read) -> Host:
    """Nobody wrote down what machine it was."""
    return Host(
        system=_UNKNOWN,
        cpu=_UNKNOWN,
        cores=0,
        memory_gib=0.0,
        python=_UNKNOWN,
        versions={"tool": read.tool},
    )


def _not_said(read: Read, claims: Claims) -> Iterator[str]:
    if not (claims.model or read.model):
        yield "No model is said, so no speed can be held against what the hardware can do."
    elif not (claims.accelerator or claims.target):
        yield "No accelerator is said, so no speed can be held against what it can do."
    if claims.usd_per_hour is None:
        yield "No price is said, so there is no $."
    if len({cell.id for cell in read.cells}) < len(read.cells):
        yield "Some cells are in the file more than once; each is kept, the last counts in tables."
