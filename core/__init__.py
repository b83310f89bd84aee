"""The words of the project: records, errors, settings, the endpoint client and what they share."""

from typing import Final

VERSION: Final = "0.26.0"
"""Of this server; `CHANGELOG.md` tells what each one brought."""

PRODUCT: Final = "vllm-devops-agent"
"""The label on everything this project makes, so that it touches nothing else."""
