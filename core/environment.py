"""Where this checkout is, and what of our environment other programs get; quick to import."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""The checkout; `init.sh` writes `.env` there."""

_OUR_SECRETS: Final = (
    "VLLM_API_KEY", "HF_TOKEN", "GOOGLE_API_KEY", "ANALYST_API_KEY", "MCP_BEARER_TOKEN",
)  # fmt: skip


def inherited_environment() -> dict[str, str]:
    """What a child process gets: our environment without our secrets."""
    return {name: value for name, value in os.environ.items() if name not in _OUR_SECRETS}
