"""What a test may set about a project of the simulated cloud."""

from typing import Any, Literal

from pydantic import Field

from core.record import Record

Constraint = Literal[
    "run.allowedIngress", "run.managed.requireInvokerIam", "compute.vmExternalIpAccess"
]
Rollout = Literal["ok", "never", "probe-fails", "image-missing", "no-capacity"]


class Fault(Record):
    """Something that goes wrong with the next calls of a method."""

    method: str
    """Such as google.cloud.run.v2.Services/CreateService; `*` stands for any letters."""
    status: str = "UNAVAILABLE"
    message: str = ""
    reason: str = ""
    """Of the ErrorInfo that goes with it; none if empty."""
    times: int = 1
    """How many calls; -1 is all."""
    when: Literal["before", "after", "hang", "hang-after"] = "before"
    """Before it took effect, after, or no answer at all (without or with effect)."""


class TpuZone(Record):
    """What one zone has of TPUs."""

    accelerators: tuple[str, ...] = ("v6e-1", "v6e-4", "v6e-8")
    """By either control plane; none is a zone without such hardware."""
    accepts: tuple[str, ...] = ("on-demand", "spot", "flex-start")
    """Provisioning models."""
    free: int = 64
    """Chips that nobody has; 0 is a stock-out."""
    wait_seconds: float = 0
    """Simulated seconds that a request waits at least."""


class Knobs(Record):
    """The controls of one project; a fresh one has the defaults."""

    prepared: bool = False
    """As after `set_up`: APIs, both accounts with their roles, repository."""
    boot_seconds: float = Field(default=1.0, ge=0)
    """How long an instance's engine boots."""
    engine_seconds: dict[str, float] = {}
    """Seconds of single phases of that boot, in place of their share."""
    engine_environment: dict[str, str] = {}
    """More settings of the simulated engine, such as SIMULATED_ENGINE_FAIL."""
    rollout: Rollout = "ok"
    """How the next rollouts go."""
    probe_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a probe's period."""
    quotas: dict[str, int] = {}
    """What was asked for and granted: accelerators without zonal redundancy by l4 and rtx-pro-6000,
    cpu, memory_gib. Of what is not named a new project has nothing yet."""
    unused_quota: Literal["absent", "no-row", "zero"] = "absent"
    """What Cloud Quotas says of GPUs before the first deployment in a region: it has no such quota,
    no entry of the region, or a 0. Nobody has published which."""
    validates_first_grant: bool = True
    """Whether validate_only counts what the first deployment would be given."""
    identity: str = ""
    """Whoever calls; empty is a service account of the project."""
    identity_kind: Literal["service_account", "user"] = "service_account"
    """A user has no metadata server, no ID token and no quota project but `quota_project`."""
    quota_project: str = ""
    """Of a user's application default login; none if empty."""
    gcloud: str = ""
    """Who is logged in to gcloud on the caller's machine; empty is a machine without gcloud."""
    denied_permissions: tuple[str, ...] = ()
    """What the caller, who owns the project, may nevertheless not do."""
    constraints: tuple[Constraint, ...] = ()
    """What the project's organisation forbids: services that the internet reaches, services that
    ask nobody's identity, VMs with an address of their own."""
    idle_seconds: float = Field(default=900, ge=0)
    """From an instance's last request to its end."""
    metric_delay_seconds: float = Field(default=0, ge=0)
    """How late Cloud Monitoring knows."""
    log_empty_pages: int = Field(default=0, ge=0)
    """How many pages of each search in logs are empty, before the first that has entries."""
    refused_builders: tuple[str, ...] = ("N1_HIGHCPU_32", "E2_HIGHCPU_32")
    """Machine types that the project may not build on outside the global pool, UNSPECIFIED among
    them if need be: what many new projects were told."""
    beta_gpus: tuple[str, ...] = ()
    """Accelerators, such as nvidia-rtx-pro-6000, that a service has in BETA or ALPHA alone."""
    grant_seconds: float = Field(default=0, ge=0)
    """How long a grant on a secret takes to be in effect; Google: mostly within 2 minutes, at times
    7 or more (docs.cloud.google.com/iam/docs/access-change-propagation)."""
    token_seconds: float = Field(default=3600, gt=0)
    """How long an ID token is valid."""
    vertex_models: tuple[dict[str, Any], ...] = ()
    """Vertex AI's registry."""
    tpu_zones: dict[str, TpuZone] = {}
    """All that have, or may have, TPUs; empty is `tpu.capacity.ZONES`."""
    tpu_quotas: dict[str, int] = {}
    """Chips by pool: tpu, tpu-preemptible, compute, compute-preemptible; of one zone or region
    alone as POOL@WHERE. And gpus-all-regions."""
    tpu_waits_for_gpu_quota: bool = True
    """Whether no chip is ever given while gpus-all-regions is 0, as one guide has it."""
    tpu_spot_by_name: bool = False
    """Whether the queue takes spot only by its provisioning model's name, as some callers saw."""
    tpu_clock: float = Field(default=60, gt=0)
    """Simulated seconds in a real one, of whatever TPUs wait for and take."""
    tpu_run_clock: float = Field(default=1, gt=0)
    """The same of how long they may run: real time, as `ttl_minutes` and what is billed are."""
    tpu_provision_seconds: float = Field(default=30, ge=0)
    """Simulated, from the chip to the VM."""
    tpu_delete_seconds: float = Field(default=30, ge=0)
    """Simulated."""
    vm_trouble: Literal["ok", "no-docker", "image-missing", "no-logs"] = "ok"
    """What goes wrong in the next VMs: docker cannot be installed, the image does not exist, the
    VM may not write logs."""
    faults: tuple[Fault, ...] = ()
