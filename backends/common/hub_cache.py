"""What makes a download from the Hub fast, and keeps its caches small."""

from core.record import Record


class HubCache(Record):
    """How files are fetched from the Hub."""

    high_performance_gib: int
    """Memory from which its larger buffers are harmless."""
    chunk_cache_bytes: int


def hub_environment(chosen: HubCache, ram_gib: int) -> dict[str, str]:
    """Give the variables of hf_xet for a replica with so much memory."""
    fast = {"HF_XET_HIGH_PERFORMANCE": "1"} if ram_gib >= chosen.high_performance_gib else {}
    return {"HF_XET_CHUNK_CACHE_SIZE_BYTES": str(chosen.chunk_cache_bytes), **fast}
