"""A deployment explained: its boot, what moves it, what differs, and flags as people write them."""

from pathlib import Path
from typing import Any, Final

import pytest

from backends.base import BootBudget
from core.errors import InvalidArgument
from core.journal import Journal
from core.records import DeploymentSpec
from operations.explain import (
    BootCheck,
    Case,
    boot_check,
    compare_cases,
    flag_rows,
    other_flags,
    plain,
    practices,
    trade_offs,
    with_changed_flags,
)
from planner.boot import boot
from planner.flags import Flags
from planner.model import read_model
from planner.places import place
from tests.conversation import agent_of
from tests.operations.diagnosis.made import deployment
from tests.stories.conftest import Azure, bare_azure, ready_azure

__all__ = ["bare_azure", "ready_azure"]

MODEL: Final = "google/gemma-4-E2B-it"
LARGE: Final = DeploymentSpec(name="one", model="google/gemma-4-26B-A4B-it")
L4, A100, CHIP, HERE = "cloud-run-l4", "aca-a100", "tpu-v6e-1", "local"


def checked(folder: Path, **said: object) -> BootCheck:
    """Check a boot of 26B from a bucket that is mounted, on an L4 of Cloud Run."""
    case = Case(LARGE, read_model(LARGE.model), place(L4), usd_per_hour=1, weights_from="gcs-fuse")
    budget = BootBudget.model_validate({"weights_from": "gcs-fuse", **said})
    return boot_check(case, budget, Journal(folder / "journal.db"), deployment())


def seconds(ends: str) -> float:
    """Foresee the same boot without its host, which no probe sees."""
    where, model = place(L4), read_model(LARGE.model)
    phases = boot(model, where, Flags.of(LARGE), weights_from="gcs-fuse").phases[1:]
    return sum(float(getattr(phase.seconds, ends)) for phase in phases)


@pytest.mark.parametrize(
    ("ends", "beyond", "verdict"),
    [
        ("high", 1, "yes"),
        ("high", -1, "probably"),
        ("expected", -1, "probably not"),
        ("low", -1, "no"),
    ],
)
def test_the_verdict_is_by_the_slowest_the_usual_and_the_fastest_boot(
    tmp_path: Path, ends: str, beyond: int, verdict: str
) -> None:
    """Each second on the other side of an end changes the answer."""
    found = checked(tmp_path, seconds=round(seconds(ends)) + beyond)
    assert found.long_enough == verdict
    assert found.verdict.endswith(f"long enough: {verdict}.")


def test_a_first_boot_that_downloads_takes_longer(tmp_path: Path) -> None:
    """It is the one that the probe must be patient enough for: 48 GiB come at 600 Mbps."""
    budget = round(seconds("high")) + 1
    assert checked(tmp_path, seconds=budget).long_enough == "yes"
    found = checked(tmp_path, seconds=budget, fetches_first=True)
    assert found.long_enough == "probably not"
    assert "first boot" in found.verdict


def test_an_autoscaler_that_is_less_patient_than_the_probe_is_told(tmp_path: Path) -> None:
    """It takes away what still boots; the host counts as well."""
    found = checked(tmp_path, seconds=9000, idle_seconds=300)
    assert found.long_enough == "yes"
    (note,) = found.notes
    assert "300 s after" in note
    assert note.endswith("Long enough: no.")


def case(where: str, least: int = 1, stays: int | None = None, usd: float | None = 0.8) -> Case:
    """Give a deployment of E2B with so many replicas at least."""
    spec = DeploymentSpec(name="one", model=MODEL, min_replicas=least)
    return Case(spec, read_model(MODEL), place(where), usd_per_hour=usd, stays_seconds=stays)


def changes(where: str, **flags: object) -> dict[str, str]:
    """Return what single changes of E2B there would move."""
    spec = DeploymentSpec.model_validate({"name": "one", "model": MODEL, **flags})
    one = Case(spec, read_model(MODEL), place(where), usd_per_hour=2.7)
    return {each.change: "; ".join(each.moves) for each in trade_offs(one)}


@pytest.mark.parametrize(("where", "ends"), [(HERE, "stop_vllm"), (CHIP, "destroy_vllm")])
def test_a_chip_is_destroyed_where_others_are_stopped(where: str, ends: str) -> None:
    spec = DeploymentSpec(name="one", model=MODEL)
    one = Case(spec, read_model(MODEL), place(where), usd_per_hour=2.7)
    assert ends in changes(where)
    assert any(f"ttl_minutes, or {ends}" in each.rule for each in practices(one))


def test_a_change_that_moves_nothing_is_left_out() -> None:
    """A TPU boots as long with enforce_eager as without, as far as anybody knows."""
    assert "enforce_eager=true" not in changes(CHIP)
    assert "cold start: " in changes(L4)["enforce_eager=true"]
    assert "tokens -> " in changes(L4)["max_model_len=65536"]


def test_an_fp8_cache_is_offered_only_where_there_is_one() -> None:
    assert "kv_cache_dtype=fp8" in changes(L4)
    assert "kv_cache_dtype=fp8" not in changes("aca-t4")
    assert any("needs SM 8.9" in each.rule for each in practices(case("aca-t4")))


@pytest.mark.anyio
async def test_what_sleeps_is_not_said_to_cost_nothing_at_once(ready_azure: Azure) -> None:
    """It bills on for as long after its last request as deploying it warns of."""
    async with agent_of(ready_azure.settings) as agent:
        wish = {"target": A100, "name": "one", "model": MODEL, "min_replicas": 0}
        deployed = await agent.call("deploy_vllm", max_model_len=4096, **wish)
        await agent.settled("one", target=A100)
        reply = await agent.call("explain_deployment")
        awake = await agent.call("explain_deployment", flags=["min_replicas=1"])
    (warned,) = (word for word in deployed.text.split("stays for ")[1:2])
    minutes, dollars = warned.partition(" min")[0], warned.partition("$")[2].split(" ")[0]
    told = f"nothing once {minutes} min after the last request are over, ${dollars} each time"
    assert told in reply.text
    assert f"idle: {told} -> $" in " ".join(awake.data["comparison"]["together"])


PAIRS: Final = {
    "awake, asleep after a time": (case(L4), case(L4, 0, 900)),
    "asleep after a time, awake": (case(L4, 0, 900), case(L4)),
    "asleep after two times": (case(L4, 0, 900), case(A100, 0, 300, 3.4)),
    "asleep after no known time": (case(A100, 0), case(A100)),
    "asleep, a chip": (case(A100, 0, 300), case(CHIP, 1, None, 2.7)),
    "this machine, asleep": (case(HERE, 1, None, 0.0), case(L4, 0, 900)),
    "asleep at a price that nobody has said": (case(L4, 0, 900, None), case(L4, 1, None, None)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_idling_is_compared_in_the_words_of_each_alone(pair: str) -> None:
    """What may sleep is billed for a while after its last request, on either side."""
    one, other = PAIRS[pair]
    differs = compare_cases(one, other, "two")
    assert differs.differences
    assert f"idle: {alone(one)} -> {alone(other)}" in differs.together


def alone(one: Case) -> str:
    """Give what is said of idling where it is explained alone."""
    row = next(row for row in flag_rows(one) if row.flag == "min_replicas")
    return row.does.removeprefix("idle it costs ").partition("; ")[0]


SPEC: Final = DeploymentSpec(name="one", model="acme/m", max_model_len=4096)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-model-len=8192"], {"max_model_len": 8192}),
        (["--max-model-len", "8192"], {"max_model_len": 8192}),
        (["--max-model-len 8192 --enforce-eager"], {"max_model_len": 8192, "enforce_eager": True}),
        (["--max-model-len=32K"], {"max_model_len": 32768}),
        (["max_model_len=32k"], {"max_model_len": 32000}),
        (["--no-enforce-eager"], {"enforce_eager": False}),
        (["-tp", "2"], {"tensor_parallel_size": 2}),
        (["--enforce-eager", "min_replicas=1"], {"enforce_eager": True, "min_replicas": 1}),
        (["zones=a,b"], {"zones": ("a", "b")}),
        (["--block-size 32"], {"engine_args": ("--block-size", "32")}),
    ],
)
def test_a_flag_is_read_however_it_is_written(words: list[str], said: dict[str, Any]) -> None:
    """With a blank, an equals sign, several in one word, in vLLM's form or ours."""
    after = with_changed_flags(SPEC, words)
    assert {name: getattr(after, name) for name in said} == said


def test_a_flag_that_is_given_again_takes_the_place_of_the_old_one() -> None:
    """Others stay; a value with blanks, such as JSON, is one word."""
    spec = SPEC.model_copy(
        update={"engine_args": ("--limit-mm-per-prompt", '{"image": 1}', "--block-size=16")}
    )
    after = with_changed_flags(spec, ['--limit-mm-per-prompt={"image": 2}'])
    assert other_flags(after) == ("--block-size 16", '--limit-mm-per-prompt {"image": 2}')


def test_a_plain_spec_has_no_flag_in_two_places() -> None:
    """engine_args stand last on the command line, so there they would win."""
    spec = SPEC.model_copy(update={"engine_args": ("--max-model-len=1k", "--enforce-eager")})
    found = plain(spec)
    assert (found.max_model_len, found.enforce_eager, found.engine_args) == (1000, True, ())


@pytest.mark.parametrize(
    "words",
    [
        ["--block-size 16 --limit-mm-per-prompt '{\"image\": 2}'"],
        ['--block-size 16 --limit-mm-per-prompt {"image": 2} --max-num-seqs 4'],
    ],
)
def test_a_flag_and_its_json_in_one_string_are_two_words(words: list[str]) -> None:
    """A command line has them apart, as whatever guards a flag expects; the JSON stays whole."""
    found = with_changed_flags(SPEC, words).engine_args
    assert found == ("--block-size", "16", "--limit-mm-per-prompt", '{"image": 2}')


@pytest.mark.parametrize(
    "words",
    [
        ["8192"],
        ["--max-model-len"],
        ["--max-model-len=much"],
        ["--max-num-seqs=0"],
        ['"'],
        ["--api-key SECRET"],
        ["--max-model-len", "4 --api-key SECRET"],
        ["--api-key", "SECRET", "SECRET"],
    ],
)
def test_what_is_no_flag_or_a_key_is_refused(words: list[str]) -> None:
    """In our words, with what to give instead; the key is not told."""
    with pytest.raises(InvalidArgument) as refused:
        with_changed_flags(SPEC, words)
    assert refused.value.fix
    assert "SECRET" not in f"{refused.value.summary}{refused.value.fix}"


def test_what_ends_or_warms_a_deployment_is_a_difference() -> None:
    """A budget and a schedule are told, and compared, like every other flag."""
    one = Case(LARGE, read_model(LARGE.model), place(L4), usd_per_hour=1)
    wanted = {"max_usd": 5.0, "schedule": "Mon-Fri 09:00-18:00"}
    other = one.of(LARGE.model_copy(update=wanted))
    rows = {row.flag: row.does for row in flag_rows(other)}
    assert rows.keys() >= wanted.keys()
    assert "45 h a week, $45 a week" in rows["schedule"]
    found = compare_cases(one, other, "another", beside=frozenset(wanted))
    assert {row.flag for row in found.differences} == set(wanted)
    assert found.restarts == "deploy_vllm changes that, and the engine goes on."
