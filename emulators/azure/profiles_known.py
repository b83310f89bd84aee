"""Which workload profiles Azure offers where, as far as something here asks for them.

Source: Microsoft's pages on workload profiles (2025-11-04) and serverless GPUs (2025-06-02).
"""

from typing import Final

from core.record import Record

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
