"""What a cloud needs of whoever deploys, computed from the calls that are made there."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

_BACKENDS: Final = Path(__file__).parent.parent


@cache
def read_needs(folder: str) -> dict[str, Any]:
    """Return what a backend's `needs.toml` says, with the permissions of its calls as `names`.

    Its `methods` names the folder whose `permissions.toml` says what each call takes.
    """
    needs = _read(folder, "needs")
    taken = _read(needs.pop("methods"), "permissions")
    for row in needs["permissions"]:
        calls = row.pop("calls")
        row["names"] = list(dict.fromkeys(name for call in calls for name in taken[call]))
    return needs


def _read(folder: str, name: str) -> dict[str, Any]:
    return tomllib.loads((_BACKENDS / folder / f"{name}.toml").read_text(encoding="utf-8"))
