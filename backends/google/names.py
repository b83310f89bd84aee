"""What things are called on Google's side, whichever of its clouds they are in."""

from typing import Final

MANAGED_BY: Final = "vllm-devops-agent"
"""The value of the label `managed-by` on everything that is made here."""
TARGET_LABEL: Final = "vllm-devops-target"
SPEC_LABEL: Final = "vllm-devops-spec"
"""Its value is the spec's fingerprint."""
EXPIRES_LABEL: Final = "vllm-devops-expires"
"""Its value is in seconds since 1970."""
DEPLOYMENT_LABEL: Final = "vllm-devops-deployment"
"""Of what was made for one deployment alone."""
RUNTIME_ID: Final = "vllm-devops-runtime"
"""Of the account that every deployment runs as."""
HF_SECRET: Final = "hf-token"  # noqa: S105  the secret's name
NO_PROJECT: Final = "PROJECT_ID"
"""Said in texts while no project is set."""


def runtime_account(project: str) -> str:
    """Name the account that every deployment runs as."""
    return f"{RUNTIME_ID}@{project}.iam.gserviceaccount.com"


def key_secret(name: str) -> str:
    """Name the secret with a deployment's key."""
    return f"vllm-devops-{name}-api-key"
