"""Keys and tokens in Secret Manager, kept and removed as deployments do it."""

from backends.google import secrets
from backends.google.clients import GoogleSite
from backends.lifecycle import Status, advance, look, remove


async def keep_key(site: GoogleSite, deployment: str) -> bool:
    """Make a deployment's key unless it has one; whether this call made it."""
    wanted = secrets.key(site, deployment)
    before = await look(wanted[0])
    await advance(wanted, seconds=5)
    return before.status is Status.ABSENT


async def remove_secret(site: GoogleSite, name: str) -> bool:
    """Delete a secret; whether there was one of ours to delete."""
    return bool((await remove([secrets.owned(site, name)], seconds=5)).removed)
