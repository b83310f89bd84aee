"""The credential of a run: renewed for as long as it is measured, and gone with its process."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import anyio

from benchmark.folder import RunFolder
from core.errors import OpsError
from core.reply import note
from operations.resolve import find
from operations.runtime import Runtime

_REFRESH_SECONDS: Final = 60.0
"""An identity token lasts an hour; a new one is there long before."""


def keep_credential_fresh(runtime: Runtime, folder: RunFolder) -> None:
    """Renew the credential of a run while it is measured and this server lives."""
    if not runtime.settings.read_only:
        runtime.background.start(
            f"credential of {folder.path.name}", lambda: _keep_fresh(runtime, folder)
        )


def forget_credentials(runtime: Runtime, runs: Iterable[RunFolder]) -> None:
    """Take away what killed runs have left; a server that only looks says that it is there."""
    for folder in runs:
        if not runtime.settings.read_only:
            try:
                folder.forget_credential()
            except (OpsError, OSError) as exc:
                note(
                    f"{folder.path.name} was killed and its credential could not be removed: {exc}"
                )
        elif folder.credential_files() and not folder.is_measured_now():
            note(
                f"{folder.path.name} was killed and left its credential in {folder.path}: a server"
                " that may write removes it as soon as it starts."
            )


async def _keep_fresh(runtime: Runtime, folder: RunFolder) -> None:
    known = folder.manifest().provenance
    while folder.is_measured_now():
        await anyio.sleep(_REFRESH_SECONDS)
        try:
            found = await find(runtime.stage, known.target, known.deployment)
            access = runtime.keep_quiet(await found.backend.access(found.name))
        except OpsError:
            continue  # the run itself finds out, and says so
        if folder.is_measured_now() and access.certificate != folder.certificate():
            folder.keep_certificate(access.certificate)
        held = (access.api_key, access.identity_token)
        now = tuple(secret.get_secret_value() if secret else None for secret in held)
        known_now = (folder.credential(), folder.identity())
        if any(now) and folder.is_measured_now() and now != known_now:
            with suppress(OpsError):  # a full disk is the run's to tell
                folder.keep_credential(*held)
    folder.forget_credential()  # it may have ended while this was written
