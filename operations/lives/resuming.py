"""What an earlier server of this machine left under way: gone on with as soon as one lives."""

from collections.abc import Iterator

from backends.base import GoesOn
from core.errors import DeploymentNotFound, OpsError
from operations.lives.following import follow, keep_expiry, looked
from operations.runtime import Runtime
from operations.stage import Stage


async def resume(runtime: Runtime) -> None:
    """Follow every deployment that waits for its next step; a cloud is opened only for those."""
    for target, name in waiting(runtime.stage):
        backend = runtime.stage.backend(target)
        if not isinstance(backend, GoesOn):
            continue
        try:
            deployment = await looked(backend, await backend.describe(name))
        except DeploymentNotFound:
            continue
        except OpsError as exc:
            runtime.tell(f"{name} on {target} could not be gone on with: {exc.summary}")
            continue
        keep_expiry(runtime, deployment)
        follow(runtime, backend, deployment)


def waiting(stage: Stage) -> Iterator[tuple[str, str]]:
    """Give target and name of what backends have written down below the stage's folder."""
    for target in stage.usable:
        folder = stage.folder / stage.targets[target].backend / target
        for file in sorted(folder.glob("[a-z]*.json")):
            yield target, file.stem
