"""Whether what a deployment would be called is free, and its image is there."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from backends.common.preflight import Answer, Question
from backends.google import images
from backends.google.clients import MANAGED_BY
from backends.google.errors import translated
from backends.tpu import standing
from backends.tpu.blueprint import Blueprint
from backends.tpu.compute_calls import looking
from backends.tpu.site import Site
from core.cloud_errors import CloudRefused, NotOurs

_OTHER: Final = "Choose another name: what is there is left alone."


def questions(site: Site, made: Blueprint) -> Iterator[Question]:
    """Ask for the image, and for the id that request, VM, tag and firewall rule share."""
    yield Question("The container image is there", partial(_image, site, made))
    yield Question(f"The id {made.id} is free or yours", partial(_id, site, made))
    if made.opened:
        yield Question(f"The firewall rule {made.id} is free or yours", partial(_rule, site, made))


async def _image(site: Site, made: Blueprint) -> Answer:
    image = made.container.image
    try:
        pinned = await images.pinned(site, image)
    except CloudRefused as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}", fix=exc.fix)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return Answer(passed=True, detail=pinned)


async def _id(site: Site, made: Blueprint) -> Answer:
    name = made.spec.name
    there = await standing.named(site, name)
    try:
        standing.refuse_others(site, name, there)
    except NotOurs as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    if there:
        where = ", ".join(f"{one.place} {one.said}" for one in there)
        return Answer(passed=True, detail=f"It is this deployment's: {where}.")
    return Answer(passed=True, detail="Nothing of that id is there.")


async def _rule(site: Site, made: Blueprint) -> Answer:
    from google.api_core.exceptions import NotFound

    client, what = await site.clients.firewalls(), f"look at the firewall rule {made.id}"
    asked = {"project": site.clients.project, "firewall": made.id}
    try:
        with translated(what):
            found = await looking(what, client.get, request=asked)
    except NotFound:
        return Answer(passed=True, detail="None of that name is there.")
    if not found.description.startswith(f"managed-by={MANAGED_BY} deployment={made.spec.name} "):
        detail = "One of that name is there that was not made here."
        return Answer(passed=False, detail=detail, fix=_OTHER)
    return Answer(passed=True, detail="It is this deployment's, which would be changed.")
