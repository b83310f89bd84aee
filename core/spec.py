"""What is wanted of a deployment."""

import hashlib
import re
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, field_validator

from core.record import Record
from core.redaction import redact
from core.words import apart

NAME_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"
DeploymentName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Lower-case letters, digits and hyphens, at most 40: what every cloud accepts."""
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""One word of a command line."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x1f]*$")]
"""NAME=value."""
_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH", re.IGNORECASE)


class DeploymentSpec(Record):
    """What is wanted. vLLM's flags have vLLM's names and, left out, vLLM's defaults."""

    name: DeploymentName
    model: str = Field(min_length=1, max_length=4096, pattern=r"^[^-\x00-\x1f][^\x00-\x1f]*$")
    """A Hub id, or the absolute path of a folder."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: Word | None = None
    kv_cache_memory_bytes: str | None = Field(default=None, pattern=r"^[0-9]+(\.[0-9]+)?[kKmMgG]?$")
    """Bytes, or with K, M or G; replaces gpu_memory_utilization."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    quantization: Word | None = None
    dtype: Word | None = None
    cpu_offload_gb: float | None = Field(default=None, ge=0)
    enforce_eager: bool = False
    engine_args: tuple[Word, ...] = ()
    """Any other flags of `vllm serve`, one word each."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """On this machine only; left out, a free one."""
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    ttl_minutes: int | None = Field(default=None, ge=0)
    """Stop it after so long, so that nobody pays for a forgotten one; 0 never, where the target
    would else."""
    engine: Literal["vllm", "ollama"] = "vllm"
    weights: str | None = Field(
        default=None, pattern=r"^(hub(:disk|:share)?|baked|(gs|files)://\w[^\x00-\x20]*)$"
    )
    """`hub` (on Azure also `hub:disk` or `hub:share`: where its files lie), `gs://BUCKET/FOLDER`,
    `files://SHARE/FOLDER`, or `baked` into the image."""
    image: Word | None = None
    """A container image in place of the target's own, best by digest."""
    access: Literal["private", "public", "internal"] = "private"
    """Who may call it: whom the cloud knows, whoever has its key, or its own network."""
    network: Word | None = None
    """NETWORK/SUBNETWORK that a replica is attached to (Direct VPC)."""
    env: tuple[Variable, ...] = ()
    """NAME=value of the engine's environment; never a secret."""
    cpu: float | None = Field(default=None, gt=0)
    """vCPUs of a replica; left out, as many as the accelerator needs."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Of a replica; left out, as much as the model needs."""
    launch_stage: Literal["ga", "beta", "alpha"] | None = None
    """Of Cloud Run's API, for what is not yet generally available."""
    build_machine: Word | None = None
    """Cloud Build's machine type for an image of Ollama; left out, its default."""
    boot_disk_gb: int | None = Field(default=None, ge=10, le=65536)
    """Of a TPU VM, in 10^9 bytes."""

    zones: tuple[Word, ...] = ()
    """Where to look for a chip, in this order (Cloud TPU); left out, the target's own."""
    zone_wait_minutes: int | None = Field(default=None, ge=1, le=7 * 24 * 60)
    """How long each zone is waited for, before the next one is tried."""
    control_plane: Literal["auto", "queued", "compute"] = "auto"
    """Who is asked for the chip: the queue of Cloud TPU, or Compute Engine."""

    @field_validator("engine_args")
    @classmethod
    def _one_by_one(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for word in words for part in apart(word))

    @field_validator("env")
    @classmethod
    def _no_secret(cls, variables: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse secrets: what a spec holds is written in plans, labels and logs."""
        names = [variable.partition("=")[0] for variable in variables]
        for name, variable in zip(names, variables, strict=True):
            if _SECRET_NAME.search(name) or redact(variable) != variable:
                raise ValueError(
                    f"{name} looks like a secret, and env is shown in plans and commands;"
                    " the Hub's token is kept by save_hf_token"
                )
        if len(set(names)) < len(names):
            raise ValueError("env names a variable twice")
        return variables

    @property
    def from_hub(self) -> bool:
        """Whether its files are fetched from the Hub, wherever they lie then."""
        return self.engine == "vllm" and (self.weights or "hub").startswith("hub")

    @property
    def variables(self) -> dict[str, str]:
        """`env`, by name."""
        return {name: value for name, _, value in (one.partition("=") for one in self.env)}

    @property
    def served_model_name(self) -> str:
        """What the API calls the model: a Hub id as it is, a folder by its own name."""
        return self.model.rstrip("/").rsplit("/", 1)[-1] if self.model[0] in "/~." else self.model

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when anything wanted changes."""
        said = self.model_dump_json(exclude_defaults=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]
