"""Deployments that have no app yet, as what it stands on is still being made."""

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from backends.aca.blueprint import Blueprint
from backends.aca.site import Site
from backends.common import concurrency
from backends.common.concurrency import on_disk, write_whole
from core.records import NAME_PATTERN, DeploymentSpec, Failure, ModelShape, Record


class Pending(Record):
    """One deployment on its way; holds no secret."""

    spec: DeploymentSpec
    model: ModelShape
    blueprint: Blueprint
    """Of the app that is to be made."""
    since: datetime
    """When it was asked for."""
    phase: str
    """What it waits for, as one of `telling.WAITS_IN`."""
    failure: Failure | None = None
    """Why it goes on no more; deployed again, it is tried anew."""

    @property
    def name(self) -> str:
        """Of the deployment."""
        return self.spec.name


def locked(
    site: Site, name: str, *, seconds: float | None = None
) -> AbstractAsyncContextManager[int]:
    """Keep other calls and other servers on this machine from changing a deployment meanwhile.

    Raises:
        Busy: Another one has been at it for so many seconds, or else for long.
    """
    return concurrency.locked(site.folder / f".{name}.lock", name, seconds=seconds)


def keep(site: Site, pending: Pending) -> None:
    """Write it down, so that any server on this machine goes on with it.

    Raises:
        HostError: The disk does not take it.
    """
    with on_disk(site.folder):
        site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_path(site, pending.name), pending.model_dump_json(exclude_defaults=True))


def forget(site: Site, name: str) -> bool:
    """Take it away; whether there was one."""
    there = of(site, name) is not None
    if re.fullmatch(NAME_PATTERN, name):
        with on_disk(site.folder):
            _path(site, name).unlink(missing_ok=True)
    return there


def of(site: Site, name: str) -> Pending | None:
    """Give that of a deployment; None if there is none, or none that can be read any more."""
    return _read(site, _path(site, name)) if re.fullmatch(NAME_PATTERN, name) else None


def all_of(site: Site) -> Sequence[Pending]:
    """Give every one of this target, by name."""
    found = [_read(site, path) for path in sorted(site.folder.glob("*.json"))]
    return tuple(pending for pending in found if pending is not None)


def of_the_group(site: Site) -> Sequence[Pending]:
    """Give every one of any target that will stand in this site's resource group, by name."""
    found = [_parsed(path) for path in site.folder.parent.glob("*/*.json")]
    ours = [one for one in found if one and one.blueprint.ground.group_id == site.ground.group_id]
    return sorted(ours, key=lambda one: one.name)


def _read(site: Site, path: Path) -> Pending | None:
    """Read one; that of another subscription, group or region is none of this site's."""
    pending = _parsed(path)
    return pending if pending and pending.blueprint.ground == site.ground else None


def _parsed(path: Path) -> Pending | None:
    try:
        return Pending.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def _path(site: Site, name: str) -> Path:
    return site.folder / f"{name}.json"
