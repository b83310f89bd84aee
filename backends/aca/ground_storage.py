"""The storage account with the share of weights, and the environment's links to that share."""

from typing import TYPE_CHECKING, Final, NamedTuple

from backends.aca import az, bodies, policies
from backends.aca.failing import strictly
from backends.aca.names import SHARE
from backends.aca.site import Site
from backends.aca.stands import Stand, made, there
from backends.aca.waiting import reading, writing
from backends.aca.weights import link_of
from core.cloud_errors import CloudRefused, ConcurrentChange

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import AzureFileProperties
    from azure.mgmt.storage.models import StorageAccount

_MODES: Final = {False: "ReadWrite", True: "ReadOnly"}
"""What apps may do through a link that is, or is not, for reading alone."""


class Link(NamedTuple):
    """One of the environment's links to a share."""

    share: str
    read_only: bool

    @property
    def name(self) -> str:
        """As the environment calls it."""
        return link_of(self.share, read_only=self.read_only)

    @property
    def mode(self) -> str:
        """As Azure calls it."""
        return _MODES[self.read_only]


def links(share: str) -> tuple[Link, ...]:
    """Give those that are made: our own share is written to by the Hub's first downloads."""
    only_read = Link(share, read_only=True)
    return (Link(share, read_only=False), only_read) if share == SHARE else (only_read,)


async def account(site: Site) -> "StorageAccount | None":
    """Give the storage account, None if the group has none of that name."""
    client, ground = await site.clients.storage(), site.ground
    asked = client.storage_accounts.get_properties(
        ground.resource_group, ground.storage_account, **reading()
    )
    return await there("look for the storage account", asked)


async def account_stand(site: Site) -> Stand:
    """Say whether it is there."""
    found = await account(site)
    if found is None:
        return Stand.ABSENT
    return made(found.properties.provisioning_state if found.properties else None)


async def make_account(site: Site) -> None:
    """Begin to make it.

    Raises:
        CloudRefused: The name is another's.
    """
    client, ground = await site.clients.storage(), site.ground
    try:
        with strictly(f"make the storage account {ground.storage_account}"):
            await client.storage_accounts.begin_create(
                ground.resource_group,
                ground.storage_account,
                bodies.storage_account_of(ground),
                **writing(),
            )
    except CloudRefused as exc:
        if policies.is_policy(exc):
            exc.fix = policies.SHARE_FIX
        raise
    except ConcurrentChange as exc:
        if "AlreadyTaken" not in exc.summary:
            raise
        raise CloudRefused(
            f"The name of the storage account {ground.storage_account} is taken.",
            cause=exc.cause,
            fix="Set AZURE_STORAGE_ACCOUNT to another name, or bring yours into"
            f" {ground.resource_group}.",
        ) from exc


async def share_stand(site: Site, share: str) -> Stand:
    """Say whether the account has the share."""
    client, ground = await site.clients.storage(), site.ground
    asked = client.file_shares.get(
        ground.resource_group, ground.storage_account, share, **reading()
    )
    return Stand.THERE if await there(f"look for the share {share}", asked) else Stand.ABSENT


async def make_share(site: Site, share: str) -> None:
    """Make our own.

    Raises:
        CloudRefused: Another is named, which ought to hold weights by now.
    """
    client, ground = await site.clients.storage(), site.ground
    if share != SHARE:
        raise CloudRefused(
            f"The storage account {ground.storage_account} has no share {share}.",
            fix="Correct the place of the weights: files://SHARE/FOLDER. list_bucket_models shows"
            " what there is.",
        )
    with strictly(f"make the share {share}"):
        await client.file_shares.create(
            ground.resource_group,
            ground.storage_account,
            share,
            bodies.share_of(),
            **writing(),
        )


async def link_stand(site: Site, link: Link) -> Stand:
    """Say whether the environment has that link."""
    found = await _seen(site, link)
    return Stand.THERE if found and _leads(site, link, found) else Stand.ABSENT


async def make_link(site: Site, link: Link) -> None:
    """Make it, with the account's key, which is kept by Azure alone.

    Raises:
        CloudRefused: A link of that name leads elsewhere, and apps may use it.
    """
    client, ground = await site.clients.storage(), site.ground
    other = await elsewhere(site, link)
    if other:
        raise other
    with strictly(f"read the key of the storage account {ground.storage_account}"):
        answer = await client.storage_accounts.list_keys(
            ground.resource_group, ground.storage_account, **reading()
        )
    key = next((one.value for one in answer.keys_property or () if one.value), "")
    storages = (await site.clients.apps()).managed_environments_storages
    with strictly(f"link the share {link.share} to {ground.environment}"):
        await storages.create_or_update(
            ground.resource_group,
            ground.environment,
            link.name,
            bodies.storage_link_of(
                ground.storage_account, link.share, read_only=link.read_only, key=key
            ),
            **writing(),
        )


async def elsewhere(site: Site, link: Link) -> CloudRefused | None:
    """Say where a link of that name leads if it is not to our share."""
    found, ground = await _seen(site, link), site.ground
    if found is None or _leads(site, link, found):
        return None
    return CloudRefused(
        f"The link {link.name} of {ground.environment} leads to {found.share_name} of"
        f" {found.account_name} ({found.access_mode}).",
        fix="Set AZURE_STORAGE_ACCOUNT to that account, or take the link away:"
        f" {az.unlink(ground, link.name)}",
    )


async def free(site: Site) -> tuple[bool, str]:
    """Say whether the account's name can be taken, and Azure's words if it cannot."""
    client, name = await site.clients.storage(), site.ground.storage_account
    from azure.mgmt.storage.models import StorageAccountCheckNameAvailabilityParameters

    asked = StorageAccountCheckNameAvailabilityParameters(name=name)
    with strictly(f"see whether the name {name} is free"):
        answer = await client.storage_accounts.check_name_availability(asked, **reading())
    return bool(answer.name_available), answer.message or ""


async def _seen(site: Site, link: Link) -> "AzureFileProperties | None":
    storages, ground = (await site.clients.apps()).managed_environments_storages, site.ground
    asked = storages.get(ground.resource_group, ground.environment, link.name, **reading())
    found = await there("look for the environment's link to the share", asked)
    return found.properties.azure_file if found and found.properties else None


def _leads(site: Site, link: Link, found: "AzureFileProperties") -> bool:
    to = (found.account_name or "").lower(), found.share_name, found.access_mode
    return to == (site.ground.storage_account.lower(), link.share, link.mode)
