"""Setting a target up: what a human is shown, and what their yes is bound to."""

from backends.base import Setup, SetupStep
from core.records import Target
from operations.capacity import SetupReport, to_set_up

TARGET = Target(name="cloud-run-l4", backend="cloud_run", description="")


def step(what: str, *, done: bool = False, usd_per_month: float = 0.0) -> SetupStep:
    return SetupStep(what=what, done=done, command=f"make {what}", usd_per_month=usd_per_month)


def test_a_yes_is_bound_to_what_was_missing() -> None:
    """What has come to be missing since is not agreed to."""
    first = to_set_up(TARGET, Setup(steps=(step("an account"),)))
    second = to_set_up(TARGET, Setup(steps=(step("an account"), step("a repository"))))
    again = to_set_up(TARGET, Setup(steps=(step("an account"),)))
    assert first
    assert second
    assert first.bound_to != second.bound_to
    assert first == again


def test_what_is_still_missing_is_told() -> None:
    """A report never says that all is there because it was asked for."""
    steps = (step("the API", done=True), step("an account"))
    report = SetupReport(
        target="cloud-run-l4", made=("the API",), missing=("an account",), steps=steps
    )
    assert report.summary() == "cloud-run-l4 still lacks 1: an account."
    assert report.next_steps()[0].tool == "setup_target"
