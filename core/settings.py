"""The environment, read once into one frozen record."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from core.environment import ROOT as ROOT  # noqa: PLC0414  said here too
from core.environment import inherited_environment as inherited_environment  # noqa: PLC0414  the same

Toolset = Literal[
    "plan", "deploy", "models", "observe", "ask", "benchmark", "diagnose", "quota", "tpu",
    "help", "compat", "all",
]  # fmt: skip


class Settings(BaseSettings):
    """Read once, at start-up. `set_env.sh` exports the same names."""

    model_config = SettingsConfigDict(
        frozen=True,
        env_file=ROOT / ".env",
        env_ignore_empty=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    vllm_target: str | None = None
    """The target that tools use when none is named."""
    model_name: str | None = None
    """The model that `deploy_vllm` serves when none is named: a Hub id or a folder."""
    vllm_base_url: str | None = None
    """An endpoint of your own, such as http://host:8000; adds the target `endpoint`."""
    vllm_api_key: SecretStr | None = None
    """The key of `VLLM_BASE_URL`. Deployments made here get keys of their own."""
    vllm_executable: str | None = None
    """The `vllm` command for the local target; default `.vllm/bin/vllm`, then the PATH."""
    engine: Literal["auto", "real", "simulated"] = "auto"
    """The local engine: real vLLM, the simulated one, or whichever is there."""
    hf_token: SecretStr | None = None
    """Only for gated models of the Hugging Face Hub."""
    registry_username: str | None = None
    """An account at `REGISTRY_SERVER` that images are pulled with on Azure: Docker Hub limits pulls
    without one."""
    registry_password: SecretStr | None = None
    """Its password or access token; kept in the Key Vault."""
    registry_server: str = "docker.io"
    """The only registry that this account is shown to."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """How many accelerators one replica is spread over when a call does not say."""
    accelerator_type: str | None = None
    """The accelerator to prefer where a target offers several, such as v6e."""
    google_cloud_project: str | None = None
    """The Google Cloud project that deployments go to."""
    google_cloud_location: str | None = None
    """The region of Cloud Run, such as us-central1."""
    google_cloud_zone: str | None = None
    """The zone of Cloud TPU, such as us-east5-b."""
    google_allowed_addresses: Annotated[tuple[str, ...], NoDecode] = ()
    """Who may call a deployment on Cloud TPU: addresses or CIDR ranges, separated by commas;
    default the address that this machine is seen with."""
    google_api_key: SecretStr | None = None
    """Only for `make prices`: reads Google's Cloud Billing Catalog."""
    bucket_name: str | None = None
    """The Cloud Storage bucket that holds weights."""
    azure_subscription_id: str | None = None
    """The Azure subscription that deployments go to."""
    azure_resource_group: str | None = None
    """The Azure resource group that holds them; default vllm-devops."""
    azure_location: str | None = None
    """The Azure region, such as westus3."""
    azure_containerapps_environment: str | None = None
    """The managed environment that apps run in; default one of our own."""
    azure_allowed_addresses: Annotated[tuple[str, ...], NoDecode] = ()
    """Who may call a deployment on Azure: addresses or CIDR ranges, separated by commas; default
    the address that this machine is seen with."""
    azure_keyvault_name: str | None = None
    """The Key Vault that holds secrets; default one of our own."""
    azure_storage_account: str | None = None
    """The storage account that holds weights; default one of our own."""
    azure_log_analytics_workspace_id: str | None = None
    """The Log Analytics workspace that gets the logs, by its GUID; default one of our own."""
    google_service_account: str | None = None
    """The service account to impersonate where your own login cannot mint ID tokens."""
    analyst_base_url: str | None = None
    """Another OpenAI-compatible endpoint, such as http://host:8000, that reads logs in place of a
    deployment that has failed itself."""
    analyst_api_key: SecretStr | None = None
    """The key of `ANALYST_BASE_URL`."""
    analyst_model: str | None = None
    """The model to ask there; default the first that it serves."""
    rehearsal: bool = False
    """On: every cloud is a simulated one on this machine; nothing real is touched or paid."""
    read_only: bool = False
    """On: tools may plan and read, never create, change or delete."""
    toolsets: Annotated[tuple[Toolset, ...], NoDecode] = ()
    """Groups of tools to add to the default ones, separated by commas; `all` is everything."""
    confirm: Literal["ask", "token", "deny", "never"] = "ask"
    """Who agrees to destructive and paid work: the human where the client can ask, else a
    one-time token; always the token; nobody without a human; or nobody is asked."""
    mcp_bearer_token: SecretStr | None = None
    """Only for `server.py --http`: what clients must send as `Authorization: Bearer`; needed where
    others than this machine can reach it."""
    mcp_allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Only for `server.py --http`: the names that clients may call it by, separated by commas."""
    telemetry: bool = False
    """On: each call is a span of whatever OpenTelemetry SDK this process was started with."""
    vllm_devops_state_dir: Path | None = None
    """Where journal and deployments are kept; default the user's state folder."""

    @field_validator(
        "toolsets",
        "azure_allowed_addresses",
        "google_allowed_addresses",
        "mcp_allowed_hosts",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret value that must never be seen in an answer."""
        held = (
            self.vllm_api_key,
            self.hf_token,
            self.registry_password,
            self.google_api_key,
            self.analyst_api_key,
            self.mcp_bearer_token,
        )
        given = (secret.get_secret_value() for secret in held if secret)
        urls = (self.vllm_base_url, self.analyst_base_url)
        return tuple(secret for secret in (*given, *map(_password, urls)) if secret)


def _password(url: str | None) -> str | None:
    try:
        return urlsplit(url or "").password
    except ValueError:
        return None
