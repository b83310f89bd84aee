"""From a template to a revision that is provisioned, or to words about why it is not."""

from typing import Final

from core.errors import WaitedTooLong
from core.waiting import wait_until
from emulators.azure import fleet
from emulators.azure import fleet_shapes as shapes
from emulators.azure.containers import Unreadable, check_secrets
from emulators.azure.fleet_shapes import Body
from emulators.azure.refusing import Refused
from emulators.azure.state import Subscription, World

_CODE: Final = "ContainerAppOperationError"
_LOOK_SECONDS: Final = 0.02


async def roll_out(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    """Let a new revision begin; it boots by itself, and serves when it is ready.

    Raises:
        Refused: Its image or one of its secrets cannot be had: the change of the app has failed.
    """
    name, properties = shapes.short(revision), revision["properties"]
    try:
        _check(world, sub, app, revision)
    except Refused as refused:
        words = refused.message
        properties |= {
            "active": False,
            "provisioningState": "Failed",
            "provisioningError": words,
            "runningState": "Failed",
            "healthState": "Unhealthy",
        }
        _say(sub, app, name, "RevisionProvisioningFailed", words)
        raise
    properties |= {"provisioningState": "Provisioned", "active": True}
    _say(sub, app, name, "RevisionCreation", f"Creating new revision '{name}'")
    live = fleet.running(world, sub, app)
    if shapes.is_stopped(app):
        return  # it boots when the app is started
    live.fleet.begin(revision)


async def wait_for(sub: Subscription, app: Body, name: str) -> None:
    """Wait until a new revision is ready, where the change of its app waits for that.

    Raises:
        Refused: It took too long; its replica boots on all the same.
    """
    patience = sub.knobs.patience_seconds
    if patience is None or shapes.is_stopped(app):
        return

    async def ready() -> bool:
        return bool(app["properties"].get("latestReadyRevisionName") == name)

    try:
        await wait_until(
            ready, bool, waiting_for=name, every=_LOOK_SECONDS, timeout=max(patience, _LOOK_SECONDS)
        )
    except WaitedTooLong as exc:
        words = f"Failed to provision revision for container app '{shapes.short(app)}'."
        raise Refused(400, _CODE, f"{words} Error details: Operation expired.") from exc


def _check(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    container = shapes.container_of(revision)
    if sub.knobs.rollout == "image-missing":
        field = f"template.containers.{container.get('name')}.image"
        raise _failed(app, field, f"'{container.get('image')}': MANIFEST_UNKNOWN: manifest unknown")
    try:
        check_secrets(world, sub, app)
    except Unreadable as exc:
        raise _failed(app, "configuration.secrets", str(exc)) from exc


def _failed(app: Body, field: str, details: str) -> Refused:
    return Refused(
        400,
        _CODE,
        f"Failed to provision revision for container app '{shapes.short(app)}'. Error details: The"
        f" following field(s) are either invalid or missing. Field '{field}' is invalid with"
        f" details: 'Invalid value: {details}';.",
    )


def _say(sub: Subscription, app: Body, revision: str, reason: str, words: str) -> None:
    environment = shapes.environment_of(app)
    sub.append("system", shapes.short(app), revision, "", words, reason, environment=environment)
