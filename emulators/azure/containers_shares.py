"""File shares as a container sees them: a path below a mount is a folder of this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from emulators.azure import fleet_shapes as shapes
from emulators.azure.fleet_shapes import Body
from emulators.azure.state import Subscription, World
from emulators.azure.storage_accounts import account_named, opens
from emulators.azure.storage_accounts_folders import share_folder
from emulators.common.programs import CannotStart

_AZURE_FILE: Final = "AzureFile"
_SHARES: Final = "/fileServices/default/shares"


def local_weights(
    world: World, sub: Subscription, app: Body, revision: Body
) -> Callable[[str], str]:
    """Give what says where the container's path to the weights is on this machine.

    Raises:
        CannotStart: A share cannot be mounted.
    """
    folders = _folders(world, sub, app, revision)

    def here(path: str) -> str:
        for root, folder in folders.items():
            if f"{path}/".startswith(f"{root}/"):
                kept = folder / path[len(root) :].strip("/")
                return str(kept) if kept.is_dir() else path
        return path

    return here


def _folders(world: World, sub: Subscription, app: Body, revision: Body) -> dict[str, Path]:
    """Give the folder of each path where a share is mounted."""
    volumes = {one["name"]: one for one in shapes.template_of(revision).get("volumes") or []}
    found: dict[str, Path] = {}
    for mount in shapes.container_of(revision).get("volumeMounts") or []:
        volume = volumes.get(mount["volumeName"])
        if volume is None:
            raise CannotStart(f"Volume '{mount['volumeName']}' is not found in template.volumes.")
        if volume.get("storageType") == _AZURE_FILE:
            folder = _mounted(world, sub, shapes.environment_of(app), str(volume["storageName"]))
            root = str(mount["mountPath"]).rstrip("/")
            found[root] = folder / str(mount.get("subPath") or "").strip("/")
    return found


def _mounted(world: World, sub: Subscription, environment: str, link_name: str) -> Path:
    link = sub.get(f"{environment}/storages/{link_name}")
    if link is None:
        raise CannotStart(f"Error mounting volume: the storage '{link_name}' is not found.")
    file = link["properties"]["azureFile"]
    account, share = str(file["accountName"]), str(file["shareName"])
    server = f"//{account}.file.core.windows.net/{share}"
    found = account_named(world, account)
    if found is None or not found[0].get(f"{found[1]['id']}{_SHARES}/{share}"):
        raise CannotStart(
            f"Error mounting volume: mount error(2): No such file or directory: {server}"
        )
    if not opens(world, found[0], account, str(file.get("accountKey", ""))):
        raise CannotStart(f"Error mounting volume: mount error(13): Permission denied: {server}")
    return share_folder(world, found[0], account, share)
