"""What imports make of data in the repository: `python -m tests.measure_results`."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmark import imports
from benchmark.import_audit import Claims, audit
from benchmark.imports import import_file
from benchmark.records import CellResult, Code
from core.errors import InvalidArgument
from tests.benchmark.importing import HERE
from tests.benchmark.planted import HONEST, PLANTED, PUBLIC
from tests.benchmark.test_imports import FORMS

_ACCUSED: Final = frozenset(
    {Code.CONTRADICTORY, Code.COLD, Code.DUPLICATED_GRID, Code.IMPOSSIBLE_SPEED}
)


def main() -> None:
    """Print how many forms are read, contradictions found and honest cells accused."""
    with TemporaryDirectory() as folder:
        made = [Path(folder) / name for name in FORMS]
        for path in made:
            path.write_text(FORMS[path.name][0], encoding="utf-8")
        files = [*made, *sorted(HERE.iterdir())]
        cells = [read for path in files if (read := _cells(path))]
    audited = sum(map(len, cells))
    print(f"imports: {len(cells)} of {len(files)} files of other tools read, {audited} rows")
    nothing = Claims()
    planted = [_alone(HONEST | each, nothing) for each in PLANTED.values()]
    found = sum(Code.CONTRADICTORY in _codes([cell]) for cell in planted)
    print(f"imports: {found} of {len(PLANTED)} planted contradictions found")
    honest = [_alone(HONEST, nothing)]
    for model, accelerator, fields in PUBLIC:
        honest.append(_alone(fields, Claims(model=model, accelerator=accelerator)))
    accused = sum(bool(_codes([cell]) & _ACCUSED) for cell in honest)
    print(f"imports: {accused} of {len(honest)} honest cells falsely accused")


def _cells(path: Path) -> tuple[CellResult, ...]:
    try:
        return import_file(path, claims=Claims()).cells
    except InvalidArgument:
        return ()


def _alone(fields: dict[str, Any], said: Claims) -> CellResult:
    rows = imports.from_documents([fields]) or []
    return audit(imports.read_table(rows, said).cells, said)[0]


def _codes(cells: Iterable[CellResult]) -> set[Code]:
    return {verdict.code for cell in cells for verdict in cell.verdicts}


if __name__ == "__main__":
    main()
