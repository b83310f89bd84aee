"""What a revision's body says of its replicas, and a replica's own body."""

from datetime import UTC, datetime
from typing import Any, Final

from emulators.azure import fleet_shapes as shapes
from emulators.azure.fleet_shapes import Body
from emulators.azure.state import Replica, World

_LATE: Final = "Deployment Progress Deadline Exceeded."
_ASSIGNING: Final = "AssigningReplica"


def tell(revision: Body, rows: list[Replica], *, proven: bool, given_up: bool, on: bool) -> bool:
    """Write what a revision's living replicas are doing into its body; whether that is news.

    Args:
        revision: Its body.
        rows: The replicas that are there.
        proven: Whether it was ready once.
        given_up: Whether it was scaled to none before that.
        on: Whether it is active, and its app not stopped.
    """
    told = {"replicas": len(rows), "runningStateDetails": ""}
    if not on:
        told |= {"runningState": "Stopped"}
    elif any(one.ready for one in rows):
        told |= _running(revision, rows)
    elif rows:
        told |= _coming(rows, proven=proven)
    elif given_up:
        told |= _late(0, 1)
    elif proven:
        told |= {"runningState": "ScaledToZero", "healthState": "Healthy"}
    else:
        told |= {"runningState": "Activating", "healthState": "None"}
    properties = revision["properties"]
    news = any(properties.get(key) != value for key, value in told.items())
    properties |= told
    return news


def _running(revision: Body, rows: list[Replica]) -> dict[str, Any]:
    ready = sum(one.ready for one in rows)
    if any(one.restarts and not one.ready for one in rows):
        details = f"{ready}/{len(rows)} replicas ready."
        return {
            "runningState": "Degraded",
            "healthState": "Unhealthy",
            "runningStateDetails": details,
        }
    full = ready >= shapes.scale_of(revision).most
    return {"runningState": "RunningAtMaxScale" if full else "Running", "healthState": "Healthy"}


def _coming(rows: list[Replica], *, proven: bool) -> dict[str, Any]:
    """Say what none of the replicas being ready means."""
    restarts = max(one.restarts for one in rows)
    if restarts > 1 and not proven:
        return _late(0, len(rows))
    if restarts:
        return {
            "runningState": "Degraded",
            "healthState": "Unhealthy",
            "runningStateDetails": "Container crashing.",
        }
    waiting = next((one.details for one in rows if one.assigned is None), "")
    return {
        "runningState": "Processing" if proven else "Activating",
        "healthState": "None",
        "runningStateDetails": "" if waiting == _ASSIGNING else waiting,
    }


def _late(ready: int, wanted: int) -> dict[str, Any]:
    return {
        "runningState": "ActivationFailed",
        "healthState": "Unhealthy",
        "runningStateDetails": f"{_LATE} {ready}/{wanted} replicas ready.",
    }


def replica_body(world: World, revision: Body, row: Replica) -> Body:
    """Give a replica as ARM does."""
    names = [str(one.get("name", "")) for one in shapes.template_of(revision)["containers"]]
    return {
        "id": f"{revision['id']}/replicas/{row.name}",
        "name": row.name,
        "type": "Microsoft.App/containerApps/revisions/replicas",
        "properties": {
            "createdTime": _moment(row.created),
            "runningState": row.state,
            "runningStateDetails": row.details,
            "containers": [_container(world, revision, row, name) for name in names],
            "initContainers": [],
        },
    }


def _container(world: World, revision: Body, row: Replica, name: str) -> dict[str, Any]:
    running = row.state == "Running"
    path = f"{revision['id']}/replicas/{row.name}/containers/{name}".replace(
        "/providers/Microsoft.App", ""
    )
    reason = row.details if row.details == "CrashLoopBackOff" else "ContainerCreating"
    return {
        "name": name,
        "containerId": f"containerd://{row.name}" if row.assigned else "",
        "ready": row.ready,
        "started": row.started,
        "restartCount": row.restarts,
        "runningState": "Running" if running else "Waiting",
        "runningStateDetails": "" if running else f"Container is waiting with reason: {reason}",
        "logStreamEndpoint": f"{world.urls.http}{path}/logstream",
        "execEndpoint": f"{world.urls.http}{path}/exec".replace("http://", "ws://"),
    }


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
