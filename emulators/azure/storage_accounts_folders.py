"""Where on this machine the data of storage accounts lies: shares are folders, blobs are files."""

from pathlib import Path
from typing import Final

from emulators.azure.state import Subscription, World

_ALL: Final = "storage"
_FILE: Final = "file"
_BLOB: Final = "blob"


def storage_folder(world: World) -> Path:
    """Give the folder that has one for each subscription."""
    return world.folder / _ALL


def account_folder(world: World, sub: Subscription, account: str) -> Path:
    """Give the folder of an account."""
    return storage_folder(world) / sub.id / account


def share_folder(world: World, sub: Subscription, account: str, share: str) -> Path:
    """Give the folder of a share, which looks as the share does."""
    return account_folder(world, sub, account) / _FILE / share


def container_folder(world: World, sub: Subscription, account: str, container: str = "") -> Path:
    """Give the folder of a container of blobs; without a name, that of all."""
    return account_folder(world, sub, account) / _BLOB / container
