"""Boots beside those that others waited for."""

import pytest

from core.errors import InvalidArgument
from core.records import ModelShape
from planner.boot import Boot, boot, loader
from planner.flags import Flags
from planner.places import place
from tests.planner.shapes import catalogued


def of(model: str, where: str, *, weights_from: str | None = None, eager: bool = False) -> Boot:
    flags = Flags(enforce_eager=eager)
    return boot(catalogued(model), place(where), flags, weights_from=weights_from)


def phase(found: Boot, name: str) -> float:
    return next(each.seconds.expected for each in found.phases if each.name == name)


def test_weights_over_gcs_fuse_take_as_long_as_they_did() -> None:
    """26B QAT in 664 s and its compilation in 99."""
    found = of("26b qat", "cloud-run-l4", weights_from="gcs-fuse")
    assert phase(found, "weights") == pytest.approx(664, rel=0.01)
    assert phase(found, "compile") == 99
    assert found.within_budget == "yes"


def test_thirteen_minutes_on_azure_are_within_the_estimate() -> None:
    """58 GiB from Azure Files, 576 s of about 780 in all."""
    found = of("31b", "aca-a100")
    assert phase(found, "weights") == pytest.approx(576, rel=0.02)
    assert found.seconds.low < 13 * 60 < found.seconds.high


@pytest.mark.parametrize("seconds", [490, 860])
@pytest.mark.parametrize("model", ["e2b", "e4b"])
def test_a_cold_tpu_is_within_the_estimate(model: str, seconds: int) -> None:
    """490 to 860 s were seen."""
    found = of(model, "tpu-v6e-1").seconds
    assert found.low < seconds < found.high


def test_a_boot_too_long_for_the_probe_is_said() -> None:
    """58 GiB over FUSE do not come in 1,800 s; streamed they do."""
    slow = of("31b", "cloud-run-rtx-pro-6000", weights_from="gcs-fuse")
    quick = of("31b", "cloud-run-rtx-pro-6000", weights_from="gcs-streamed")
    assert slow.within_budget == "probably not"
    assert "runai_streamer" in slow.advice
    assert quick.within_budget == "yes"


def test_the_host_is_not_in_the_probes_time() -> None:
    """A probe begins with the container."""
    tight = of("e2b", "cloud-run-l4")
    without_host = tight.seconds.high - tight.phases[0].seconds.high
    where = place("cloud-run-l4").model_copy(update={"startup_seconds_max": int(without_host) + 1})
    assert boot(catalogued("e2b"), where, Flags()).within_budget == "yes"


def test_eager_neither_compiles_nor_captures() -> None:
    """That is what it buys at the start."""
    names = {each.name for each in of("e2b", "cloud-run-l4", eager=True).phases}
    assert names == {"host and image", "engine start", "weights"}


def test_a_processor_captures_no_graphs() -> None:
    """Real vLLM was healthy after 13 s with enforce_eager, after 33 without (a tiny model)."""
    eager, usual = of("e2b", "local", eager=True), of("e2b", "local")
    assert {each.name for each in usual.phases} - {each.name for each in eager.phases} == {
        "compile"
    }
    assert phase(eager, "engine start") == 13
    assert phase(usual, "engine start") + phase(usual, "compile") == 33
    assert not any("L4" in each.seconds.source for each in usual.phases)


def test_what_is_not_known_is_not_guessed() -> None:
    """A source without a row, a model without a size."""
    with pytest.raises(InvalidArgument, match="floppy"):
        of("e2b", "cloud-run-l4", weights_from="floppy")
    with pytest.raises(InvalidArgument, match="How large"):
        boot(ModelShape(model="nobody/knows"), place("local"), Flags())


def test_a_later_start_is_foreseen_where_the_disk_stays() -> None:
    """Files and compiled code are there already; a container's disk is new each time."""
    model = catalogued("12b qat")
    own = boot(model, place("rtx-3090"), Flags(), weights_from="hub")
    assert own.again
    assert own.again.high < own.seconds.high
    assert own.again.expected < own.seconds.expected / 2
    assert boot(model, place("cloud-run-l4"), Flags()).again is None


@pytest.mark.parametrize(
    ("where", "weights_from", "expected"),
    [("cloud-run-l4", "gcs-streamed", 99 - 8), ("tpu-v6e-1", "gcs-fuse", 300 - 120)],
)
def test_a_later_start_whose_compiled_code_is_carried_is_shorter_by_its_compilation(
    where: str, weights_from: str, expected: float
) -> None:
    """To a container with a new disk; unless nothing is compiled, or it may not be carried."""
    model, spot = catalogued("12b qat"), place(where)
    found = boot(model, spot, Flags(), weights_from=weights_from)
    assert found.again
    assert found.seconds.expected - found.again.expected == pytest.approx(expected)
    kept = spot.model_copy(update={"keeps_compiled": True})
    assert boot(model, kept, Flags(), weights_from="hub").again
    off = spot.model_copy(update={"keeps_compiled": False})
    assert boot(model, off, Flags(), weights_from=weights_from).again is None
    if where == "cloud-run-l4":
        eager = Flags(enforce_eager=True)
        assert boot(model, kept, eager, weights_from=weights_from).again is None


def test_how_weights_are_read_follows_from_where_they_lie() -> None:
    streamed, ahead, plain = (loader(name) for name in ("gcs-streamed", "azure-files", "hub"))
    assert streamed.args == ("--load-format", "runai_streamer")
    assert ahead.args == ("--safetensors-load-strategy", "prefetch")
    assert (plain.args, str(plain).partition(":")[0]) == ((), "default")
