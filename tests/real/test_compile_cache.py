"""What a real vLLM compiled is there at its next boot, in a container that never was before.

Four boots, two of which compile: 80 s.
"""

from pathlib import Path

import pytest

from tests.real.carried import boot, manifest

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]


def compiled(root: Path) -> dict[str, int]:
    """Every library of machine code, and when it was made."""
    return {one.name: one.stat().st_mtime_ns for one in root.rglob("*.so")}


async def test_a_boot_takes_up_what_another_compiled_and_refuses_what_is_not_its_own(
    tmp_path: Path,
) -> None:
    """It compiles no machine code anew; one that is refused serves all the same.

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

    foreign = await boot(tmp_path, image="two", enforce_eager=True)
    assert foreign.of_cache[0] == "not used", foreign.text
    assert not compiled(root)

    tar.write_bytes(tar.read_bytes()[: tar.stat().st_size // 2])
    broken = await boot(tmp_path, image="two", enforce_eager=True)
    assert broken.of_cache[0] == "put aside", broken.text
    assert (tmp_path / "store" / "k.aside.tar").exists()

    pools = {one.log.memory.kv_cache_tokens for one in (first, second, foreign, broken)}
    assert len(pools) == 1
    assert None not in pools
