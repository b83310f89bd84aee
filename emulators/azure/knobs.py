"""What a test may set about a subscription of the simulated cloud."""

from typing import Literal

from pydantic import Field

from core.record import Record

Rollout = Literal["ok", "never", "probe-fails", "image-missing", "no-host"]


Forbidden = Literal["shared-keys", "public-ingress"]


class Fault(Record):
    """Something that goes wrong with the next calls of a method."""

    method: str
    """Such as `PUT Microsoft.App/containerApps`, `GET operations`; `*` stands for any letters."""
    status: int = 503
    code: str = ""
    message: str = ""
    times: int = 1
    """How many calls; -1 is all."""
    when: Literal["before", "after", "hang", "hang-after"] = "before"
    """Before it took effect, after, or no answer at all (without or with effect)."""
    retry_after: float | None = None
    """Seconds that the answer asks to wait; none if None."""


class Knobs(Record):
    """The controls of one subscription; a fresh one has the defaults."""

    prepared: bool = False
    """As after `set_up` of both targets in swedencentral, with the names that it gives."""
    boot_seconds: float = Field(default=1.0, ge=0)
    """How long a replica's engine boots."""
    engine_seconds: dict[str, float] = {}
    """Seconds of single phases of that boot, in place of their share."""
    engine_environment: dict[str, str] = {}
    """More settings of the simulated engine, such as SIMULATED_ENGINE_FAIL."""
    rollout: Rollout = "ok"
    """How the next rollouts go; `no-host` waits for a GPU for ever."""
    probe_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a probe's period."""
    environment_seconds: float = Field(default=0.2, ge=0)
    """How long an environment takes to be made."""
    operation_seconds: float = Field(default=0.05, ge=0)
    """How long any other change takes."""
    patience_seconds: float | None = Field(default=None, ge=0)
    """How long the change of an app waits for its new revision to be ready; then it has failed,
    and the replica boots on. None: it is over before the boot."""
    host_seconds: float = Field(default=0.0, ge=0)
    """How long a replica waits for a GPU."""
    quotas: dict[str, int] = {}
    """GPUs in each region, by a100 and t4."""
    environment_quotas: dict[str, int] = {}
    """GPUs in each environment, by a100 and t4."""
    profiles: dict[str, tuple[str, ...]] | None = None
    """Workload profile types that regions offer, in place of Azure's."""
    disk_gib: float | None = Field(default=None, gt=0)
    """What the disk of a container with a GPU holds of files from the Hub; nobody documents it.
    None: whatever they need."""
    startup_failures: int = Field(default=240, ge=1)
    """How many failures of a startup probe the region takes; 10 where its service is older."""
    whole_nodes: bool = True
    """A GPU's profile takes its whole pair of processors and memory alone; nobody documents it."""
    organisation_forbids: tuple[Forbidden, ...] = ()
    """What policies deny: storage accounts with shared keys, apps that the internet reaches."""
    docker_hub_limited: bool = False
    """Docker Hub gives its images to nobody without an account, as too many have asked."""
    old_environment: bool = False
    """Environments take no GPU profile after they are made."""
    identity: str = ""
    """Whoever calls; empty is an account of the subscription's own."""
    login: Literal["ok", "expired", "none"] = "ok"
    """Whether a token is given."""
    token_seconds: float = Field(default=3600, gt=0)
    """How long a token is valid."""
    denied_actions: tuple[str, ...] = ()
    """What the caller, who owns the subscription, may nevertheless not do; `*` matches."""
    group_alone: bool = False
    """The caller's role is on resource groups, and none on the subscription."""
    role_seconds: float = Field(default=0, ge=0)
    """From a role's assignment until it takes effect."""
    cooldown_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a cooldown or a polling interval."""
    gateway_seconds: float = Field(default=240, gt=0)
    """After which the ingress ends a request."""
    log_delay_seconds: float = Field(default=0, ge=0)
    """How late Log Analytics knows."""
    partial_queries: bool = False
    """Log Analytics answers in part."""
    log_tables: bool = True
    """Whether the tables of container apps exist in workspaces."""
    registration_seconds: float = Field(default=0.05, ge=0)
    """How long the registration of a provider takes."""
    caller_address: str = "127.0.0.1"
    """Where requests to apps come from, as the ingress sees it."""
    faults: tuple[Fault, ...] = ()

    def quota(self, accelerator: str) -> int:
        """Give how many of a100 or t4 a region lets run; 2 where none is set."""
        return self.quotas.get(accelerator, 2)

    def environment_quota(self, accelerator: str) -> int:
        """Give how many of a100 or t4 an environment lets run; 2 where none is set."""
        return self.environment_quotas.get(accelerator, 2)
