"""What a carried compile cache saves of a boot: `.venv/bin/python -m tests.measure_compile_cache`.

Boots of a real vLLM on this machine's processor, the tiny model, its cache of keys and values
pinned: a cold one and one with what that one left take turns, so that a busy machine slows both.
On a processor vLLM 0.32 loads no AOT artifact ("'function' object has no attribute
'finalize_loading'"): it traces anew, and finds its machine code.
"""

import tempfile
from pathlib import Path
from statistics import median
from typing import Final

import anyio

from tests.real.carried import Booted, boot
from tests.real.conftest import VLLM

TURNS: Final = 5


def row(name: str, boots: list[Booted]) -> tuple[float, float]:
    """Print one kind of boot; give the medians of compiling and of the whole."""
    compiling = median(one.log.split.get("compile", 0.0) for one in boots)
    whole = median(one.seconds for one in boots)
    print(f"{name:8} compile {compiling:5.1f} s   whole boot {whole:5.1f} s   ", end="")
    print("each", *(f"{one.seconds:.1f}" for one in boots))
    return compiling, whole


async def main() -> None:
    """Boot in turns."""
    if not VLLM.exists():
        print("compile cache: no real vLLM here; make vllm")
        return
    cold: list[Booted] = []
    warm: list[Booted] = []
    for _ in range(TURNS):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(await boot(Path(folder)))
            warm.append(await boot(Path(folder)))
    whole = [row("cold", cold), row("carried", warm)]
    ratios = (f"{after / before:.2f}" for before, after in zip(*whole, strict=True))
    print("carried/cold: compile {}, whole boot {}".format(*ratios))
    took = {one.of_cache[0] for one in warm}
    print("carried boots said:", *sorted(took))
    pools = [one.log.memory.kv_cache_tokens for one in (*cold, *warm)]
    print("KV cache, tokens:", *pools, "- identical" if len(set(pools)) == 1 else "- NOT identical")


if __name__ == "__main__":
    anyio.run(main)
