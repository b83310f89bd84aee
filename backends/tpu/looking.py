"""Deployments as both control planes and this machine's memory have them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from backends.common.concurrency import side_by_side
from backends.tpu import finding, telling
from backends.tpu import kept as memory
from backends.tpu.finding import chip_of as chip_of  # noqa: PLC0414  said here too
from backends.tpu.finding import chips_of as chips_of  # noqa: PLC0414  said here too
from backends.tpu.finding import everything as everything  # noqa: PLC0414  said here too
from backends.tpu.finding import spec_of as spec_of  # noqa: PLC0414  said here too
from backends.tpu.looks import spec_in as spec_in  # noqa: PLC0414  said here too
from backends.tpu.site import Site
from core.cloud_errors import CloudError, NotAuthenticated
from core.records import Deployment
from core.reply import note


async def describe(site: Site, name: str) -> Deployment:
    """Say what a deployment does now.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotOurs: A VM of its id was not made here.
        CloudError: A control plane cannot be asked.
    """
    chip = await chip_of(site, name)
    return await telling.tell(site, memory.of(site, name), chip, now=datetime.now(UTC))


async def list_all(site: Site) -> Sequence[Deployment]:
    """Say it of every one that has this target's label or is remembered here, by name.

    Raises:
        NotAuthenticated: Nobody is logged in.
        CloudError: Neither control plane can be asked.
    """
    known = {one.name: one for one in memory.all_of(site)}
    here = [chip for chip in await everything(site) if chip.target == site.target.name]
    names = sorted({*known, *(chip.deployment for chip in here)} - {""})

    async def look(name: str) -> Deployment:
        kept = known.get(name)
        chip = finding.best([chip for chip in here if chip.deployment == name], kept)
        try:
            return await telling.tell(site, kept, chip, now=datetime.now(UTC))
        except NotAuthenticated:
            raise
        except CloudError as exc:  # one that cannot be looked at must not hide the others
            note(f"{name}: {exc.summary} {exc.cause}".strip())
            return telling.not_seen(site, kept, chip, exc, now=datetime.now(UTC))

    return await side_by_side([lambda name=name: look(name) for name in names])  # type: ignore[misc]  # mypy knows no lambda's default
