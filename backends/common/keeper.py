"""Who ends a deployment when its time is over: its cloud by itself, or a server on this machine."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from backends.common.preflight import Answer
from backends.lease import Keeper
from core.errors import CloudError
from core.records import DeploymentSpec, usd
from core.reply import note


class Means(NamedTuple):
    """What a cloud takes to end a deployment by itself, as far as a look tells it."""

    cloud: str
    """Such as "Google"."""
    missing: Sequence[str]
    fix: str
    """How whoever deploys gets that."""
    refusal: type[CloudError]
    """What is raised where nothing else may end it."""
    otherwise: str = "Or leave lease out: a server ends it."
    """What to ask for instead of it."""


def _why(spec: DeploymentSpec, means: Means) -> str:
    missing = "; ".join(means.missing)
    return f"{means.cloud} cannot end {spec.name} by itself; missing: {missing}."


_SERVER = "A server on this machine ends it, while one runs."


async def decide_keeper(spec: DeploymentSpec, look: Callable[[], Awaitable[Means]]) -> Keeper:
    """Decide who ends it, by a look where that is needed; that its cloud cannot is noted.

    Raises:
        CloudError: Its cloud is to end it, and cannot.
    """
    if spec.lease == "server":
        return "server"
    means = await look()
    if not means.missing:
        return "cloud"
    if spec.lease == "cloud":
        summary = f"{_why(spec, means)} Nothing was made."
        raise means.refusal(summary, fix=f"{means.fix} {means.otherwise}")
    note(f"{_why(spec, means)} {_SERVER} {means.fix}")
    return "server"


def plan_words(
    spec: DeploymentSpec, when: str, cloud: str, job: str, *, usd_per_month: float = 0.0
) -> Iterator[str]:
    """Say of a plan when it ends, and who ends it then; nothing of what has no end.

    `job` is what its cloud does it by, at so much a month.
    """
    if when and spec.lease == "server":
        yield (
            f"It is stopped {when}, by a server on this machine, and by none while no server"
            f" runs: leave lease out and {cloud} ends it."
        )
    elif when:
        bill = f" ({usd(usd_per_month)} a month until it is destroyed)" if usd_per_month else ""
        yield (
            f"It is stopped {when}, by {job}, whether a server runs or not{bill}; where this login"
            " may not have that, the answer says so and a server ends it."
        )


def answer_of(spec: DeploymentSpec, means: Means, well: str) -> Answer | str:
    """Answer a preflight's question whether its cloud can end it; `well` is said where it can."""
    if not means.missing:
        return well
    if spec.lease == "cloud":
        return Answer(passed=False, detail=_why(spec, means), fix=means.fix)
    return Answer(passed=None, detail=f"{_why(spec, means)} {_SERVER}", fix=means.fix)
