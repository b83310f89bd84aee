"""Good practice, with the figures by which it was judged."""

from pathlib import Path
from typing import Final

from backends.base import BootBudget
from core.journal import Journal
from core.records import DeploymentSpec
from operations.explain import boot_check, practices
from operations.explain_case import Case, Practice
from planner.model import read_model
from planner.places import place
from tests.operations.diagnosis.made import deployment

MODEL: Final = "google/gemma-4-E2B-it"


def practice(folder: Path, where: str, about: str, *, fetches_first: bool = False) -> Practice:
    """Give the one about something, of E2B there."""
    spec, model = DeploymentSpec(name="one", model=MODEL), read_model(MODEL)
    case = Case(spec, model, place(where), usd_per_hour=2.7)
    source = case.weights_from
    budget = BootBudget(seconds=900, weights_from=source, fetches_first=fetches_first)
    check = boot_check(case, budget, Journal(folder / "journal.db"), deployment())
    assert (check.predicted_first_seconds is not None) is fetches_first
    return next(one for one in practices(case, check) if about in one.rule)


def test_a_health_check_is_held_against_the_boot_it_was_judged_by(tmp_path: Path) -> None:
    """The first one of all, where that downloads the weights; else any."""
    first = practice(tmp_path, "aca-a100", "health check", fetches_first=True)
    later = practice(tmp_path, "aca-a100", "health check")
    assert "with the first boot's download" in first.why
    assert "download" not in later.why
    assert first.why.split(";")[1] != later.why.split(";")[1]


def test_a_chip_that_cannot_be_stopped_is_to_be_destroyed(tmp_path: Path) -> None:
    """Good practice names what ends its bill."""
    assert "or destroy it" in practice(tmp_path, "tpu-v6e-1", "ttl_minutes").rule
    assert "or stop it" in practice(tmp_path, "local", "ttl_minutes").rule
