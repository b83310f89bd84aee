"""Azure's own roles and workload profiles, as far as something here asks for them."""

import fnmatch
from typing import Final

from core.records import Record

A100: Final = "Consumption-GPU-NC24-A100"
T4: Final = "Consumption-GPU-NC8as-T4"
CONSUMPTION: Final = "Consumption"


class ProfileType(Record):
    """What one replica, or one node, of a profile has at most."""

    category: str
    cores: int
    memory_gib: int
    gpus: int = 0
    display_name: str = ""
    quota: str = ""
    """The key of the knob `quotas` that it draws on; none if empty."""


TYPES: Final = {
    CONSUMPTION: ProfileType(category=CONSUMPTION, cores=4, memory_gib=8),
    A100: ProfileType(
        category="Consumption-GPU-NC-A100", cores=24, memory_gib=220, gpus=1, quota="a100"
    ),
    T4: ProfileType(category="Consumption-GPU-NC-T4", cores=8, memory_gib=56, gpus=1, quota="t4"),
    "D4": ProfileType(
        category="GeneralPurpose", cores=4, memory_gib=16, display_name="Dedicated-D4"
    ),
    "D8": ProfileType(
        category="GeneralPurpose", cores=8, memory_gib=32, display_name="Dedicated-D8"
    ),
    "E4": ProfileType(
        category="MemoryOptimized", cores=4, memory_gib=32, display_name="Dedicated-E4"
    ),
    "NC24-A100": ProfileType(
        category="GPU-NC-A100", cores=24, memory_gib=220, gpus=1, display_name="Dedicated-NC24-A100"
    ),
}
_BOTH: Final = (
    "australiaeast", "brazilsouth", "canadacentral", "eastus", "italynorth", "swedencentral",
    "westus", "westus3",
)  # fmt: skip
_T4_ONLY: Final = (
    "centralindia", "francecentral", "japaneast", "northcentralus", "southcentralus",
    "southeastasia", "southindia", "westeurope", "westus2",
)  # fmt: skip
_NEITHER: Final = ("northeurope", "uksouth", "germanywestcentral", "eastus2", "centralus")
_DEDICATED_GPU: Final = ("northeurope", "westus3")
_EVERYWHERE: Final = (CONSUMPTION, "D4", "D8", "E4")
REGIONS: Final = (*_BOTH, *_T4_ONLY, *_NEITHER)
"""Where Container Apps are at all."""


def offered(region: str) -> tuple[str, ...]:
    """Give the types of a region, nothing where Container Apps are not."""
    if region not in REGIONS:
        return ()
    a100 = (A100,) if region in _BOTH else ()
    t4 = (T4,) if region in (*_BOTH, *_T4_ONLY) else ()
    dedicated = ("NC24-A100",) if region in _DEDICATED_GPU else ()
    return (*_EVERYWHERE, *t4, *a100, *dedicated)


_WORDS: Final = (
    "australia", "brazil", "canada", "italy", "sweden", "india", "france", "japan", "asia",
    "europe", "uk", "germany", "us", "north", "south", "east", "west", "central",
)  # fmt: skip


def display_of(region: str) -> str:
    """Give a region's name as Azure shows it, such as Sweden Central.

    >>> display_of("swedencentral"), display_of("westus3"), display_of("northcentralus")
    ('Sweden Central', 'West US 3', 'North Central US')
    """
    words: list[str] = []
    rest = region
    while rest:
        word = next((one for one in _WORDS if rest.startswith(one)), rest)
        words.append(word.upper() if word in {"us", "uk"} else word.title())
        rest = rest.removeprefix(word)
    return " ".join(words)


_SECRETS: Final = "Microsoft.KeyVault/vaults/secrets"
_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_FILE_SERVICES: Final = "Microsoft.Storage/storageAccounts/fileServices"
_FILES: Final = f"{_FILE_SERVICES}/fileshares/files"
READ_SECRET: Final = f"{_SECRETS}/getSecret/action"
SET_SECRET: Final = f"{_SECRETS}/setSecret/action"
LIST_SECRETS: Final = f"{_SECRETS}/readMetadata/action"
DELETE_SECRET: Final = f"{_SECRETS}/delete"
RECOVER_SECRET: Final = f"{_SECRETS}/recover/action"
PURGE_SECRET: Final = f"{_SECRETS}/purge/action"
READ_BLOB: Final = f"{_BLOBS}/read"
WRITE_BLOB: Final = f"{_BLOBS}/write"
READ_FILE: Final = f"{_FILES}/read"
WRITE_FILE: Final = f"{_FILES}/write"
READ_ANY_FILE: Final = f"{_FILE_SERVICES}/readFileBackupSemantics/action"
WRITE_ANY_FILE: Final = f"{_FILE_SERVICES}/writeFileBackupSemantics/action"


class Role(Record):
    """A built-in role."""

    guid: str
    name: str
    actions: tuple[str, ...] = ()
    """Of the control plane; `*` stands for any letters."""
    not_actions: tuple[str, ...] = ()
    """Taken from those."""
    data_actions: tuple[str, ...] = ()
    """Of the data planes; an owner has none of them."""

    def allows(self, action: str) -> bool:
        """Whether it allows an action of the control plane."""
        return _among(action, self.actions) and not _among(action, self.not_actions)

    def allows_data(self, action: str) -> bool:
        """Whether it allows an action of a data plane."""
        return _among(action, self.data_actions)


def _among(action: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(action.lower(), one.lower()) for one in patterns)


OWNER: Final = Role(guid="8e3af657-a8ff-443c-a75c-2fe8c4bcb635", name="Owner", actions=("*",))
SECRETS_USER: Final = Role(
    guid="4633458b-17de-408a-b874-0445c86b69e6",
    name="Key Vault Secrets User",
    data_actions=(READ_SECRET, LIST_SECRETS),
)
SECRETS_OFFICER: Final = Role(
    guid="b86a8fe4-44ce-4948-aee5-eccb2c155cd7",
    name="Key Vault Secrets Officer",
    actions=("Microsoft.KeyVault/vaults/read", "Microsoft.Authorization/*/read"),
    data_actions=(f"{_SECRETS}/*",),
)
FILES_READER: Final = Role(
    guid="b8eda974-7b85-4f76-af95-65846b26df6d",
    name="Storage File Data Privileged Reader",
    data_actions=(READ_FILE, READ_ANY_FILE),
)
_ROLES: Final = (
    OWNER,
    SECRETS_USER,
    SECRETS_OFFICER,
    Role(
        guid="b24988ac-6180-42a0-ab88-20f7382dd24c",
        name="Contributor",
        actions=("*",),
        not_actions=("Microsoft.Authorization/*/Delete", "Microsoft.Authorization/*/Write"),
    ),
    Role(guid="acdd72a7-3385-48ef-bd42-f606fba81ae7", name="Reader", actions=("*/read",)),
    Role(
        guid="18d7d88d-d35e-4fb5-a5c3-7773c20a72d9",
        name="User Access Administrator",
        actions=("*/read", "Microsoft.Authorization/*"),
    ),
    Role(
        guid="00482a5a-887f-4fb3-b363-3b7fe8e74483",
        name="Key Vault Administrator",
        data_actions=("Microsoft.KeyVault/vaults/*",),
    ),
    Role(
        guid="2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
        name="Storage Blob Data Reader",
        data_actions=(READ_BLOB,),
    ),
    Role(
        guid="ba92f5b4-2d11-453d-a403-e96b0029c9fe",
        name="Storage Blob Data Contributor",
        data_actions=(READ_BLOB, WRITE_BLOB),
    ),
    FILES_READER,
    Role(
        guid="69566ab7-960f-475b-8e7c-b3118f30c6bd",
        name="Storage File Data Privileged Contributor",
        data_actions=(READ_FILE, READ_ANY_FILE, WRITE_FILE, WRITE_ANY_FILE),
    ),
    Role(guid="7f951dda-4ed3-4680-a7ca-43fe172d538d", name="AcrPull"),
)
BY_GUID: Final = {role.guid: role for role in _ROLES}
