"""What things are called on Google's side."""

from typing import Final

SPEC_ANNOTATION: Final = "vllm-devops/spec"
REPOSITORY: Final = "vllm-devops"
BUILDER_ID: Final = "vllm-devops-builder"
"""Of the account that images are built as."""


def builder_account(project: str) -> str:
    """Name the account that images are built as."""
    return f"{BUILDER_ID}@{project}.iam.gserviceaccount.com"
