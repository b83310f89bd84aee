"""vLLM's versions, as far as they change a plan: `versions.toml`."""

import functools
import re
import tomllib
from pathlib import Path
from typing import Final, Literal

from core.errors import InvalidArgument
from core.records import Record, valid

_FILE: Final = Path(__file__).with_name("versions.toml")
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


class Profile(Record):
    """What a version of vLLM does by itself."""

    version: str
    gpu_memory_utilization: float
    in_flight_batches: int
    """Batches whose blocks a request may hold at once, with async scheduling where it has that."""
    graphs_estimated: bool
    """CUDA graphs are measured and taken off the KV cache."""
    tokens_logged: Literal["blocks", "concurrency"]
    """Blocks of one group times their length, or concurrency times length."""
    sampler: Literal["sort", "mask", "v2"] = "mask"
    """How the profiled sampler leaves out improbable tokens: all sorted, or masked in place; the
    V2 model runner's leaves out none."""
    keeps_workspace: bool = True
    """What experts work in stays allocated while the sampler is profiled."""
    fuses_all_reduce: bool = True
    """On SM 9.0 and 10.x with several accelerators, in buffers of its own."""
    mxfp4_on_hopper: Literal["triton", "marlin"] = "marlin"
    """Whose layout MXFP4 experts are padded for on SM 9.0."""
    libraries_gib: float = 0.25
    """Growth of the CUDA context and libraries while profiling, on one H100."""
    log: str

    def says(self, asked: str | None) -> str:
        """Tell which row was taken and why."""
        return f"vLLM {asked or 'of no given version'}: planned as {self.version}."


@functools.cache
def profiles() -> tuple[Profile, ...]:
    """Give every row, oldest first."""
    rows = tomllib.loads(_FILE.read_text("utf-8"))
    return tuple(valid(Profile, {"version": name, **row}) for name, row in rows.items())


def profile(version: str | None) -> Profile:
    """Give the row nearest below a version: the newest for none, the oldest for an older one.

    Raises:
        InvalidArgument: It is no version.
    """
    if version is None:
        return profiles()[-1]
    wanted = numbers(version)
    below = [row for row in profiles() if numbers(row.version) <= wanted]
    return below[-1] if below else profiles()[0]


def numbers(version: str) -> tuple[int, ...]:
    """Give major, minor and patch, to compare by.

    Raises:
        InvalidArgument: It is no version.
    """
    match = _VERSION.match(version)
    if not match:
        raise InvalidArgument(f"{version} is no vLLM version.", fix="Write it as 0.32.0.")
    return tuple(int(part or 0) for part in match.groups())
