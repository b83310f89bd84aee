"""What a real vLLM compiled is there at its next boot, in a container that never was before.

Two boots, the first of which compiles: 50 s.
"""

from pathlib import Path

import pytest

from tests.real.carried import boot, manifest

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]


def compiled(root: Path) -> dict[str, int]:
    """Every library of machine code, and when it was made."""
    return {one.name: one.stat().st_mtime_ns for one in root.rglob("*.so")}


async def test_a_boot_takes_up_what_another_compiled(
    tmp_path: Path,
) -> None:
    """It compiles no machine code anew.

    The cache of keys and values has one size in all of them, as it is pinned.
    """
    root, tar = tmp_path / "root", tmp_path / "store" / "k.tar"
    first = await boot(tmp_path)
    assert first.of_cache == ["none for", "saved k,"], first.text
    assert manifest(tar)["facts"]["vllm"].startswith("0.")
    made = compiled(root)
    assert made

    second = await boot(tmp_path)
    assert second.of_cache[0] == "carried k,", second.text
    assert f"from {root}" in second.text  # vLLM's own words for what it tried to load
    assert {name: at // 10**9 for name, at in compiled(root).items()} == {
        name: at // 10**9 for name, at in made.items()
    }

    pools = {one.log.memory.kv_cache_tokens for one in (first, second)}
    assert len(pools) == 1
    assert None not in pools
