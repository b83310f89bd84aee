"""Commands that put a model's folder on the target's share; no key is in any of them."""

import shlex
from typing import Final
from urllib.parse import quote

from backends.aca import az
from backends.aca.failing import not_configured
from backends.aca.names import SHARE
from backends.aca.shares import named
from backends.aca.site import Site
from backends.base import Upload
from core.errors import InvalidArgument

_ROLE: Final = "Storage File Data Privileged Contributor"
_NOTES: Final = (
    f"Whoever is logged in (`az login`) needs the role '{_ROLE}' on the storage account.",
    "setup_target makes account and share, and links them to the environment.",
    "azcopy begins each file anew when it was cut off: repeat it, or `azcopy jobs resume`.",
)


def upload(site: Site, folder: str, here: str, bucket: str | None) -> Upload:
    """Say how `here` gets to where deployments read it; `folder` where the bucket names none.

    Flags: Microsoft's reference of `azcopy copy`, read 2026-11.

    Raises:
        InvalidArgument: It is no share.
        NotConfigured: It is not known whose storage account is meant.
    """
    place = named(bucket or SHARE)
    if place.kind == "blob":
        raise InvalidArgument(
            "Container Apps mount no blobs.", fix="Give SHARE or files://SHARE/FOLDER."
        )
    folder = place.folder or folder
    if not (site.clients.configured or site.settings.azure_storage_account):
        raise not_configured()  # the account is named after the subscription
    return Upload(
        location=f"{place.root}/{folder}",
        bucket=place.root,
        steps=tuple(_steps(site, place.store, folder, here)),
        notes=_NOTES,
    )


def _steps(site: Site, share: str, folder: str, here: str) -> list[tuple[str, str]]:
    ground = site.ground
    url = f"https://{ground.storage_account}.file.core.windows.net/{share}/{quote(folder)}"
    copied = ["azcopy", "copy", f"{here}/*", url, "--recursive", "--exclude-path=.cache"]
    listed = ["az", "storage", "file", "list", "--account-name", ground.storage_account]
    listed += ["--share-name", share, "--path", folder, "--auth-mode", "login"]
    listed += ["--enable-file-backup-request-intent", "--output", "table"]
    return [
        ("Make the share if it is not there.", az.share(ground, share)),
        ("Copy the folder.", f"AZCOPY_AUTO_LOGIN_TYPE=AZCLI {shlex.join(copied)}"),
        ("See what is there.", shlex.join(listed)),
    ]
