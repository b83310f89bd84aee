"""Where a replica runs: it waits for a GPU, and for room in the quotas of GPUs."""

import time
from collections.abc import Callable
from typing import Final

import anyio

from emulators.azure import fleet_shapes as shapes
from emulators.azure.fleet_shapes import Body
from emulators.azure.profiles_known import A100, T4, TYPES
from emulators.azure.state import Replica, Subscription

_RHYTHM_SECONDS: Final = 0.05
_COUNTERS: Final = {A100: "ConsumptionNCA100Gpus", T4: "ConsumptionT4Gpus"}
"""What Azure calls the quota of a type, after whose it is."""

Say = Callable[[str, str], None]


async def assigned(sub: Subscription, app: Body, row: Replica, say: Say) -> None:
    """Wait until the replica has a host; from then on it is billed."""
    told = ""
    while True:
        why = _obstacle(sub, app, row)
        if not why:
            break
        if why != told:
            say("AssigningReplicaFailed", why)
        row.details = told = why
        await anyio.sleep(_RHYTHM_SECONDS)
    row.assigned = row.billed_from = time.time()


def _obstacle(sub: Subscription, app: Body, row: Replica) -> str:
    """Say what a replica still waits for; nothing if it may run."""
    kind = TYPES.get(row.profile_type)
    if kind is None or not kind.quota:
        return ""
    running = [one for one in sub.living() if one.assigned and one.profile_type == row.profile_type]
    in_region = sum(one.region == row.region for one in running)
    in_environment = sum(one.environment == row.environment for one in running)
    if in_region >= sub.knobs.quota(kind.quota):
        return _exceeded("Subscription", row, in_region)
    if in_environment >= sub.knobs.environment_quota(kind.quota):
        return _exceeded("ManagedEnvironment", row, in_environment)
    if sub.knobs.rollout == "no-host" or time.time() < row.created + sub.knobs.host_seconds:
        return (
            "Waiting for infrastructure to be ready: insufficient capacity on workload profile"
            f" '{shapes.profile_of(app)}'"
        )
    return ""


def _exceeded(whose: str, row: Replica, used: int) -> str:
    return (
        f"Maximum Allowed GPUs exceeded: {whose}{_COUNTERS[row.profile_type]} is {used} in use in"
        f" {row.region}. Please check https://learn.microsoft.com/azure/container-apps/quotas for"
        " resource limits"
    )
