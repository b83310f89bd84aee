"""What ends a boot that takes too long, as a platform was told to."""

from typing import Protocol, runtime_checkable

from core.records import ModelShape, Record


class BootBudget(Record):
    """How long a replica may take until it answers, before its platform gives it up."""

    seconds: int | None = None
    """From the container's start, as the deployment's own startup probe says; None: nothing ends
    it."""
    probe: str = ""
    """The same as it was told to the platform."""
    longest_seconds: int | None = None
    """The most that the platform, or this project on it, lets a probe allow."""
    weights_from: str
    """A name of `planner/boot.toml`: where a boot reads the weights."""
    fetches_first: bool = False
    """The first boot of all downloads them to there beforehand."""
    idle_seconds: int | None = None
    """After which a replica that nobody asks is taken away, even while it boots; counted from
    when it was scheduled. None: that never happens."""
    stays_seconds: int | None = None
    """For which a replica that may sleep stays after its last request, and bills; None: not
    known."""
    notes: tuple[str, ...] = ()
    """What else ends a boot there, or waits for it."""


@runtime_checkable
class EndsSlowBoots(Protocol):
    """Gives up a replica that does not answer in time."""

    async def boot_budget(self, name: str, model: ModelShape) -> BootBudget:
        """Say how long a deployment of a model may take, read from the platform. Wakes nothing.

        Raises:
            DeploymentNotFound: Nothing of that name was made here.
            CloudError: The platform cannot be asked.
        """
