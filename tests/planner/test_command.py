"""`python -m planner` and its commands, as a shell calls them; the pairs that they read."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from core.journal import Journal
from planner.__main__ import main
from planner.calibrate import DecodePair, KvPair, calibrate, keep_decode, keep_kv, kept
from planner.commandline import as_toml
from planner.speed import Constants
from tests.planner.test_calibrate import ROWS_3090, cached, decoded

L4 = ("--accelerator", "l4")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main([*words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, found


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A state folder with the 3090's two published rows and a KV cache."""
    journal = Journal(tmp_path / "state" / "real" / "journal.db")
    for row in ROWS_3090:
        keep_decode(journal, decoded(*row))
    keep_kv(journal, cached(more_gib=0.2), revision="abc", instance="1")
    return tmp_path / "state"


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """With a sentence each."""
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert listed >= {"fit", "advise", "compare", "judge", "calibrate"}


@pytest.mark.parametrize(
    "words", [(), ("guess",), ("judge", "12b", *L4), ("advise", "--users", "x")]
)
def test_what_argparse_does_not_know_is_a_usage_error(words: tuple[str, ...]) -> None:
    """Status 2."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 2


def test_advice_has_offers_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    """Somewhere it runs; of deployability nothing is said unless asked."""
    status, found = answer(capsys, "advise", "26b qat", "--users", "4", "--max-model-len", "8192")
    assert status == 0
    assert set(found) == {"goal", "offers", "refused", "elsewhere", "instead"}
    assert (found["goal"]["model"], found["goal"]["users"]) == ("26b qat", 4)
    assert found["offers"]
    assert not any("deployable" in offer for offer in found["offers"])


def test_advice_says_what_the_given_backends_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    """As data, and in words where none of them does."""
    words = ("advise", "12b qat", "--deployable", "cloud_run")
    _, found = answer(capsys, *words)
    assert {offer["deployable"] for offer in found["offers"]} <= {True, False}
    assert main(list(words)) == 0
    assert "none of the given backends deploys there" in capsys.readouterr().out
    assert main(list(words[:2])) == 0
    assert "backends" not in capsys.readouterr().out


def test_advice_that_finds_nothing_has_another_status(capsys: pytest.CaptureFixture[str]) -> None:
    """With what would do instead."""
    words = ("advise", "31b qat", "--target", "cloud-run-l4")
    status, found = answer(capsys, *words)
    assert (status, found["offers"]) == (1, [])
    assert found["instead"]
    assert not any("deployable" in offer for offer in found["instead"])
    assert main(list(words)) == 1
    said = capsys.readouterr().out
    assert "no cloud-run-l4: google/gemma-4-31B-it-qat-w4a16-ct" in said
    assert "Instead" in said


def test_a_comparison_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each model and place, and which is best at what."""
    words = ("compare", "12b-qat", "31b-qat", "--target", "cloud-run-l4", "--target", "rtx-3090")
    status, found = answer(capsys, *words)
    assert status == 0
    assert set(found) == {"goal", "rows", "cheapest", "best_value", "fastest"}
    assert len(found["rows"]) == 4
    assert main(list(words)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| model")
    assert "is cheapest by the hour" in lines[-1]


def test_a_comparison_of_what_fits_nowhere_has_another_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its rows still say why."""
    status, found = answer(capsys, "compare", "31b", "--target", "cloud-run-l4")
    assert (status, found["rows"][0]["fits"]) == (1, False)
    assert found["rows"][0]["reason"]


def test_eighty_tokens_a_second_of_12b_on_an_l4_is_impossible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The published claim, in int4 as in bf16."""
    words = (*L4, "--tokens-per-second", "80")
    status, found = answer(capsys, "judge", "12b qat", *words)
    assert (status, found["verdict"]) == (1, "impossible")
    assert found["roof_tokens_per_second"] == pytest.approx(36.7, rel=0.01)
    assert {"claimed_tokens_per_second", "likely_tokens_per_second", "reason"} <= set(found)
    assert main(["judge", "12b", *words]) == 1
    assert "is impossible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (("12b qat", *L4, "--tokens-per-second", "25"), "plausible"),
        (("12b qat", *L4, "--tokens-per-second", "35"), "doubtful"),
        (("31b qat", "--accelerator", "rtx-3090", "--count", "2"), "plausible"),
        (("12b", *L4, "--quantization", "fp8"), "impossible"),
        (("31b qat", *L4, "--cpu-offload-gb", "14"), "impossible"),
    ],
)
def test_what_is_possible_is_not_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], verdict: str
) -> None:
    """Two cards share, fp8 halves, offloaded weights come slowly; 66 tokens/s unless said."""
    given = words if "--tokens-per-second" in words else (*words, "--tokens-per-second", "66")
    status, found = answer(capsys, "judge", *given)
    assert (status, found["verdict"]) == (int(verdict == "impossible"), verdict)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("judge", "12b", *L4, "--tokens-per-second", "-3"), "no speed"),
        (("judge", "12b", *L4, "--tokens-per-second", "nan"), "no speed"),
        (("judge", "12b", *L4, "--tokens-per-second", "5", "--count", "0"), "cannot be"),
        (("judge", "a/b", *L4, "--tokens-per-second", "5"), "shape"),
        (("judge", "12b", "--accelerator", "cpu", "--tokens-per-second", "5"), "bandwidth"),
        (("advise",), "Which model?"),
        (("advise", "12b", "--quality", "huge"), "cannot be"),
        (("compare", "12b", "--target", "moon"), "moon"),
    ],
)
def test_what_is_not_understood_is_neither_yes_nor_no(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Status 2, the sentence on stderr and nothing on stdout."""
    assert main(list(words)) == 2
    written = capsys.readouterr()
    assert said in written.err
    assert written.out == ""


def test_without_pairs_calibrate_says_how_to_get_some(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Status 1, and the state folder is not made by looking."""
    folder = tmp_path / "none"
    assert main(["calibrate", "--state-dir", str(folder)]) == 1
    assert "No pairs are kept yet. Deploy a model" in capsys.readouterr().err
    assert not folder.exists()


def test_calibrate_prints_what_would_change(
    capsys: pytest.CaptureFixture[str], measured: Path
) -> None:
    """As rows for speed.toml, and as JSON with the residuals."""
    words = ("calibrate", "--state-dir", str(measured))
    assert main(list(words)) == 0
    written = capsys.readouterr()
    assert Constants.model_validate(tomllib.loads(written.out)["constants"]["rtx-3090"])
    assert "into planner/speed.toml" in written.err
    status, found = answer(capsys, *words)
    assert (status, set(found)) == (0, {"fitted", "kv_offsets", "left_out"})
    assert len(found["fitted"][0]["residuals"]) == 2
    assert found["fitted"][0]["today"]["effective_gb_per_s"] == 883


def test_calibrate_finds_the_servers_own_state_folder(
    capsys: pytest.CaptureFixture[str], measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM_DEVOPS_STATE_DIR, and a folder given relative to here."""
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(measured))
    assert answer(capsys, "calibrate")[0] == 0
    monkeypatch.delenv("VLLM_DEVOPS_STATE_DIR")
    monkeypatch.chdir(measured.parent)
    assert answer(capsys, "calibrate", "--state-dir", measured.name)[0] == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(measured.parent / "empty"))
    monkeypatch.setenv("HOME", str(measured.parent / "empty"))
    assert answer(capsys, "calibrate")[0] == 1


def test_settings_that_cannot_be_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2, with the name of the setting."""
    monkeypatch.setenv("ENGINE", "steam")
    assert main(["calibrate"]) == 2
    assert "engine" in capsys.readouterr().err


def test_calibrate_writes_only_where_it_is_told(
    capsys: pytest.CaptureFixture[str], measured: Path, tmp_path: Path
) -> None:
    """Again into its own file, never over another's."""
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    other.write_text("[bands]\n")
    words = ["calibrate", "--state-dir", str(measured), "--write"]
    assert [main([*words, str(mine)]) for _ in range(2)] == [0, 0]
    assert "rtx-3090" in tomllib.loads(mine.read_text())["constants"]
    assert main([*words, str(other)]) == 2
    assert other.read_text() == "[bands]\n"
    assert main([*words, str(tmp_path / "no" / "folder.toml")]) == 2
    assert main(["calibrate", "--state-dir", str(tmp_path), "--write", str(tmp_path / "x")]) == 1
    assert not (tmp_path / "x").exists()


def test_the_rows_are_toml_that_the_planner_reads() -> None:
    """As speed.toml has them, with the residuals as comments."""
    found = calibrate([decoded(*row) for row in ROWS_3090], [cached(more_gib=0.2)])
    written = as_toml(found)
    rows = tomllib.loads(written)
    assert Constants.model_validate(rows["constants"]["rtx-3090"]) == found.fitted[0].constants
    assert rows["kv_offsets"]["rtx-3090"]["offset_gib"] == 0.2
    assert rows["constants"]["rtx-3090"]["source"] == "measured here, 2 pairs, 2026-11-20"
    assert "speed.toml says 883 GB/s, 69 us; condition 8" in written
    assert "66.4 tokens/s, -0.0%" in written or "66.4 tokens/s, +0.0%" in written


def test_pairs_come_back_from_the_journal(tmp_path: Path) -> None:
    """As they were, the newest last; a later look at the same life replaces."""
    journal = Journal(tmp_path / "journal.db")
    first, second, third = cached(), cached(more_gib=0.5), cached(more_gib=0.7)
    keep_kv(journal, first, revision="abc", instance="1")
    keep_kv(journal, second, revision="abc", instance="2")
    keep_kv(journal, third, revision="abc", instance="1")
    assert kept(journal, KvPair) == (second, third)
    assert kept(journal, DecodePair) == ()


def test_a_speed_is_kept_for_each_doubling_of_the_context(tmp_path: Path) -> None:
    """Newer ones of the same model, flags and length replace; a rehearsal replaces nothing."""
    journal = Journal(tmp_path / "journal.db")
    old, new, longer = (decoded("12b qat", 1, 70, context=tokens) for tokens in (600, 700, 1400))
    eager = decoded("12b qat", 1, 60, context=700, enforce_eager=True)
    rehearsed = new.model_copy(update={"simulated": True})
    for pair in (old, new, longer, eager, rehearsed):
        keep_decode(journal, pair)
    assert kept(journal, DecodePair) == (new, longer, eager, rehearsed)


def test_what_another_version_kept_is_left_out(tmp_path: Path) -> None:
    """A row that cannot be read spoils no other."""
    journal = Journal(tmp_path / "journal.db")
    journal.keep_pair("kv", "old", '{"tokens": 5}')
    journal.keep_pair("kv", "torn", "{")
    keep_kv(journal, cached(), revision="abc", instance="1")
    assert kept(journal, KvPair) == (cached(),)
