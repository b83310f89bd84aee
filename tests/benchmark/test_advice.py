"""Flags that are advised, with what they would gain."""

import pytest

from benchmark.advice import findings
from benchmark.records import Code
from benchmark.report import actions
from tests.benchmark.found import SPEC, saying
from tests.benchmark.made import a_cell, a_grid, a_manifest, with_verdict


def test_a_full_cache_asks_for_fp8_where_the_accelerator_can() -> None:
    """Twice the tokens at most, and no more than what waits."""
    made = a_manifest(accelerator="NVIDIA H100 SXM")
    found = saying(findings(made, a_grid()), "--kv-cache-dtype fp8")
    assert "at most 2 times as many run; the planner predicts" in found.text


@pytest.mark.parametrize(
    ("accelerator", "spec"),
    [("A100 80GB", SPEC), ("NVIDIA H100 SXM", SPEC | {"kv_cache_dtype": "fp8"})],
)
def test_fp8_is_not_advised_where_it_is_impossible_or_already_there(
    accelerator: str, spec: dict[str, object]
) -> None:
    """An A100 has no fp8; an fp8 cache gets no smaller."""
    made = a_manifest(accelerator=accelerator, deployment_spec=spec)
    found = findings(made, a_grid())
    assert not any("--kv-cache-dtype" in each.text for each in found)
    assert "more memory" in saying(found, "cannot be stored in fewer bits").text


@pytest.mark.parametrize(
    ("accelerator", "model"), [("Unheard Of", None), ("NVIDIA H100 SXM", "/models/mine")]
)
def test_what_the_planner_does_not_know_still_gets_the_bound(
    accelerator: str, model: str | None
) -> None:
    """The waiting share bounds the gain, whoever made the chip and wherever the model's files."""
    made = a_manifest(accelerator=accelerator)
    subject = made.subject.model_copy(update={"model": model or made.subject.model})
    found = findings(made.model_copy(update={"subject": subject}), a_grid())
    assert saying(found, "--kv-cache-dtype").text.endswith("that is the bound of the gain.")


def test_sequences_are_raised_no_further_than_what_waits_or_fits() -> None:
    """96 of 128 wait with 6 % of the cache used: four times, to 128."""
    found = saying(findings(a_manifest(), a_grid()), "--max-num-seqs")
    assert "from 32 to 128" in found.text
    half = a_cell(8, 128)
    assert half.server is not None
    server = half.server.model_copy(update={"kv_cache_usage_max": 0.6})
    fuller = (a_cell(8, 32), half.model_copy(update={"server": server}))
    assert "from 32 to 48" in saying(findings(a_manifest(), fuller), "--max-num-seqs").text


@pytest.mark.parametrize("spec", [SPEC | {"max_num_seqs": 512}, SPEC])
def test_a_deployed_or_default_max_num_seqs_is_believed_over_a_plateau(
    spec: dict[str, object],
) -> None:
    """512 allowed, or vLLM's 256 on an A100: 32 running of 128 is not what the flag does."""
    found = findings(a_manifest(deployment_spec=spec), a_grid(contexts=(8,)))
    assert not any("--max-num-seqs" in each.text for each in found)


def test_a_spec_that_cannot_be_read_stops_no_finding() -> None:
    """Somebody else's manifest may say anything."""
    for spec in ({"name": "NO NAME", "model": 7}, SPEC | {"kv_cache_dtype": "nvfp4"}):
        made = a_manifest(deployment_spec=spec)
        assert saying(findings(made, a_grid()), "KV cache limits")


@pytest.mark.parametrize(
    ("cpu_share", "cores", "advised"),
    [
        (0.95, 8, "Measure with workers=8"),
        (0.95, 1, "a machine that does nothing else"),
        (0.2, 8, "a machine that does nothing else"),
    ],
)
def test_workers_are_advised_only_where_they_can_help(
    cpu_share: float, cores: int, advised: str
) -> None:
    """A full core is helped by another one; a machine that lets the client wait is not."""
    made = a_manifest()
    made = made.model_copy(update={"host": made.host.model_copy(update={"cores": cores})})
    cell = with_verdict(a_cell(), Code.CLIENT_SATURATED)
    assert cell.client is not None
    client = cell.client.model_copy(update={"cpu_share": cpu_share})
    (said,) = actions(made, [cell.model_copy(update={"client": client})])
    assert advised in said
    assert ("workers=" in said) is (cores > 1 and cpu_share > 0.9)
