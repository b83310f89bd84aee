"""What vLLM's versions say of a boot: one row of data for each wording."""

import tomllib
from typing import Any, Final

import pytest

from logs.boot import PHASES, BootLog, Wording, read_boot, words
from tests.logs.conftest import DATA, NOW

LINES: Final[list[dict[str, Any]]] = tomllib.loads(
    (DATA / "boot-wordings.toml").read_text("utf-8")
)["line"]
WORDINGS: Final = (*words().phases, *words().facts, *words().steps)


def told(boot: BootLog, names: set[str]) -> dict[str, Any]:
    """What a boot says under these names, be they of the boot or of its memory."""
    said = {**boot.model_dump(exclude={"memory"}), **boot.memory.model_dump()}
    return {name: said[name] for name in names}


@pytest.mark.parametrize("row", LINES, ids=[f"{row['version']}: {row['told']}" for row in LINES])
def test_a_line_of_each_version_tells_what_it_says(row: dict[str, Any]) -> None:
    """Phase, progress and figures of one line alone, and no other figure is made up of it."""
    boot = read_boot([row["text"]], now=NOW)
    assert told(boot, set(row["told"])) == row["told"]
    figures = {name for name, value in boot.memory if value is not None}
    assert figures == set(row["told"]) - set(BootLog.model_fields)
    if "phase" not in row["told"]:
        assert boot.phase in {"starting", "loading weights", "compiling"}


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda one: one.pattern.pattern[:60])
def test_every_wording_has_a_line_that_was_seen(wording: Wording) -> None:
    """No pattern is there that no log is known to say; each line holds one of its hints."""
    fitting = [row for row in LINES if wording.pattern.search(row["text"])]
    assert fitting
    for row in fitting:
        assert wording.find(row["text"])
        assert words().hint.search(row["text"])


def test_phases_are_told_in_the_order_of_a_boot() -> None:
    """The file of wordings has them in the order in which they follow each other."""
    names = tuple(dict.fromkeys(wording.name for wording in words().phases))
    assert ("starting", *names) == PHASES


def test_the_most_exact_of_two_figures_is_kept() -> None:
    """A figure of four decimals is not replaced by the same one of two, whichever comes last."""
    exact = "INFO 03-25 21:32:47 [x.py:1] Model loading took 14.9888 GiB and 3.5 seconds"
    rough = "INFO 03-25 21:32:48 worker.py:266] model weights take 14.99GiB;"
    for lines in ([exact, rough], [rough, exact]):
        assert read_boot(lines, now=NOW).memory.weights_gib == 14.9888


def test_a_key_among_the_arguments_is_not_told() -> None:
    """The engine prints the key that it was given; nobody needs to read it again."""
    line = "non-default args: {'api_key': ['sk-one', 'sk-two'], 'hf_token': 'hf_x', 'port': 1}"
    arguments = read_boot([line], now=NOW).arguments
    assert arguments == "{'api_key': '***', 'hf_token': '***', 'port': 1}"
