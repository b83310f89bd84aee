"""What one call may ask for: tools say it in their schemas, and load nothing that does the work."""

from typing import Final

MAX_LOG_LINES: Final = 500
"""About 40 kB: what an agent can read in one go."""
MAX_RUN_WAIT_SECONDS: Final = 40
"""A call that waits for a benchmark ends before a client cuts it."""
TTFT_SECONDS: Final = 2.0
"""Above it a person who waits for a chat's first word notices; a batch job does not care."""
MOST_TTFT_SECONDS: Final = 2560.0
"""The last finite bucket of vLLM's histogram (0.32): no quantile is ever above it."""
