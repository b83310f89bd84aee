"""Tools that make, watch, change and remove deployments, and prepare their place."""

from typing import Annotated, Literal

from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from backends.base import SetsUp
from core.errors import CloudError, DeploymentNotFound, InvalidArgument
from core.records import Answer, Deleted, Deployment
from operations import agreement, capacity, deployments, inventory
from operations.deployments import find_to_watch
from operations.resolve import choose_target, find
from operations.runtime import Runtime
from tools.confirm import agree, saying
from tools.surface import (
    CREATES,
    DESTROYS,
    KNOWS,
    LOOKS,
    REPLACES,
    RT,
    Layout,
    Number,
    Text,
    Whole,
    Words,
    args_of,
    ops_tool,
)

Engine = Literal["vllm", "ollama"]
Caller = Literal["private", "public", "internal"]
Plane = Literal["auto", "queued", "compute"]
Stage = Literal["ga", "beta", "alpha"]
Keeper = Literal["cloud", "server"]
Carried = Literal["carried", "off"]
_NOT_FLAGS = ("model", "target", "name", "region", "reset", "layout", "force", "confirm", "rt")


_SELDOM = (
    *("quantization", "dtype", "cpu_offload_gb", "enforce_eager", "max_num_batched_tokens"),
    *("kv_cache_memory_bytes", "max_idle_minutes", "lease", "network"),
    *("port", "zone_wait_minutes", "control_plane", "region"),
    *("env", "cpu", "memory_gib", "launch_stage", "build_machine", "boot_disk_gb"),
    "compile_cache",
)
"""Taken, and left out of the listing; `engine_args` says what vLLM calls them as well."""


@ops_tool("deploy", REPLACES, default=True, seldom=_SELDOM)
async def deploy_vllm(
    model: Text = None,
    target: Text = None,
    name: Text = None,
    max_model_len: Whole = None,
    gpu_memory_utilization: Number = None,
    kv_cache_dtype: Text = None,
    kv_cache_memory_bytes: Text = None,
    max_num_seqs: Whole = None,
    max_num_batched_tokens: Whole = None,
    tensor_parallel_size: Whole = None,
    quantization: Text = None,
    dtype: Text = None,
    cpu_offload_gb: Number = None,
    enforce_eager: bool | SkipJsonSchema[None] = None,
    engine_args: Words = None,
    port: Whole = None,
    min_replicas: Annotated[int, Field(ge=0)] | SkipJsonSchema[None] = None,
    max_replicas: Whole = None,
    ttl_minutes: Annotated[int, Field(ge=0)] | SkipJsonSchema[None] = None,
    max_usd: Number = None,
    max_idle_minutes: Whole = None,
    lease: Keeper | SkipJsonSchema[None] = None,
    schedule: Text = None,
    engine: Engine | SkipJsonSchema[None] = None,
    weights: Text = None,
    image: Text = None,
    access: Caller | SkipJsonSchema[None] = None,
    network: Text = None,
    zones: Words = None,
    zone_wait_minutes: Whole = None,
    control_plane: Plane | SkipJsonSchema[None] = None,
    env: Words = None,
    cpu: Number = None,
    memory_gib: Number = None,
    launch_stage: Stage | SkipJsonSchema[None] = None,
    build_machine: Text = None,
    boot_disk_gb: Whole = None,
    compile_cache: Carried | SkipJsonSchema[None] = None,
    region: Text = None,
    layout: Layout = None,
    reset: Words = None,
    force: bool = False,
    confirm: Text = None,
    rt: Runtime = RT,
) -> Deployment:
    """Deploy a model: launch it on a cloud, spin it up here; or change one: what is left out stays.

    Returns at once; call status_vllm. Flags have vLLM's names and defaults.

    Args:
        model: Hub id or folder.
        target: Such as tpu-v6e-1-spot; see list_targets.
        kv_cache_memory_bytes: Such as 512M.
        engine_args: Other vllm serve flags, one word each.
        ttl_minutes: Stop after so long; 0 never.
        max_usd: Stop before it costs more.
        schedule: Warm Mon-Fri 09:00-18:00 UTC.
        weights: hub, baked, gs://BUCKET/FOLDER or files://SHARE/FOLDER.
        zones: Of TPUs, in order.
        layout: Let the planner compute the flags.
        reset: Arguments to set back.
        force: Even if it does not fit.
        confirm: Token from the preview.
    """
    given = args_of(locals(), without=_NOT_FLAGS)
    backend = await agreement.backend_for(rt, target, name)
    if region:
        from operations import targets

        found = targets.check(rt, backend.target.name, region, zones)
        given = {**given, **({"zones": found} if found else {})}
    with capacity.offered_for(backend.target):
        wish = await agreement.wish(
            rt, backend, name, model, given=given, reset=reset or (), layout=layout
        )
        wanted, asked = await agreement.to_deploy(rt, wish, layout=layout, force=force)
        await agree(rt, asked, confirm)
        return await deployments.deploy(rt, backend, wanted)


@ops_tool("deploy", LOOKS, default=True)
async def status_vllm(
    target: Text = None,
    name: Text = None,
    wait_s: Annotated[float, Field(ge=0, le=deployments.MAX_WAIT_SECONDS)] = 0,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> Answer:
    """Say if a deployment works: up, loading (progress, shards), stuck, failed; or wait for ready.

    Args:
        wait_s: Seconds to wait for a change.
    """
    try:
        found = await find_to_watch(rt, target, name)
    except (DeploymentNotFound, CloudError) as exc:
        if name or (target and isinstance(exc, CloudError)):
            raise
        return await inventory.list_deployments(rt, target)  # says that there is none
    return await deployments.status(rt, found, wait_s=wait_s, tell=saying(ctx))


@ops_tool("deploy", LOOKS, default=True)
async def list_deployments(target: Text = None, rt: Runtime = RT) -> Answer:
    """List every deployment, active or stopped: what is still running, its cost and expiry."""
    return await inventory.list_deployments(rt, target)


@ops_tool("deploy", REPLACES, default=True)
async def update_vllm_scaling(
    min_replicas: Annotated[int, Field(ge=0)] | SkipJsonSchema[None] = None,
    max_replicas: Annotated[int, Field(ge=0)] | SkipJsonSchema[None] = None,
    target: Text = None,
    name: Text = None,
    ttl_minutes: Whole = None,
    confirm: Text = None,
    rt: Runtime = RT,
) -> Deployment:
    """Scale a deployment to more or fewer replicas (instances), or extend its time.

    Minimum 1 stays warm, minimum 0 sleeps when idle, 0 and 0 stops it.

    Args:
        ttl_minutes: From now.
    """
    found = await find(rt.stage, target, name, to_change=True)
    change = agreement.rescaling(found, min_replicas, max_replicas, ttl_minutes)
    await agreement.refuse_scale(found, change)
    await agree(rt, agreement.to_scale(found, change), confirm)
    return await deployments.scale(rt, found, change)


@ops_tool("deploy", REPLACES, default=True)
async def stop_vllm(
    target: Text = None,
    name: Text = None,
    all: bool = False,  # noqa: A002  what people say
    confirm: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Stop, pause or shut off a deployment so that billing ends; start_vllm brings it back.

    Args:
        all: Everything that runs.
    """
    if not all:
        return await deployments.stop(await find(rt.stage, target, name, to_change=True))
    stopping = await inventory.to_stop(rt, target, name)
    await agree(rt, stopping.preview, confirm)
    return await inventory.stop_all(stopping)


@ops_tool("deploy", CREATES, default=True)
async def start_vllm(
    target: Text = None, name: Text = None, confirm: Text = None, rt: Runtime = RT
) -> Deployment:
    """Start or resume a stopped deployment again: bring it back up."""
    found = await find(rt.stage, target, name, to_change=True)
    await agreement.refuse_start(found)
    await agree(rt, agreement.to_start(found), confirm)
    return await deployments.start(rt, found)


@ops_tool("deploy", DESTROYS, default=True, seldom=("keep_cache",))
async def destroy_vllm(
    target: Text = None,
    name: Text = None,
    purge: bool = False,
    keep_cache: bool = False,
    leftover: Text = None,
    confirm: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Delete or remove a deployment for good (tear it down) and read back that it is gone.

    Args:
        purge: Also what would stay and bill.
        leftover: Instead, the id of one that get_system_status found.
        confirm: Token from the preview.
    """
    from operations import leftovers

    if leftover:
        if name or purge:
            raise InvalidArgument(
                "leftover is one resource alone.",
                fix="Leave `name` and `purge` out, or `leftover`.",
            )
        where, shown = await leftovers.to_remove(rt, target, leftover)
        await agree(rt, shown, confirm)
        return await leftovers.remove(rt, where, leftover)
    if purge and keep_cache:
        raise InvalidArgument("A purge keeps nothing.", fix="Leave purge or keep_cache out.")
    found = await deployments.find_to_destroy(rt, target, name, purge=purge, keep_cache=keep_cache)
    if isinstance(found, Deleted):
        if not purge:
            return found
        backend = rt.stage.backend(found.target)
        await agree(rt, agreement.to_purge(backend, found), confirm)
        return await deployments.purge_what_stayed(rt, found)
    await agree(rt, agreement.to_destroy(found, purge=purge, keep_cache=keep_cache), confirm)
    return await deployments.destroy(rt, found, purge=purge, keep_cache=keep_cache)


@ops_tool("deploy", LOOKS)
async def get_vllm_deployment_config(
    target: Text = None, name: Text = None, rt: Runtime = RT
) -> Answer:
    """Print a deployment's configuration: flags as shell commands, a docker run line and YAML."""
    from operations import readings

    return await readings.config(await find(rt.stage, target, name))


@ops_tool("deploy", CREATES, default=True)
async def setup_target(
    target: Text = None, confirm: Text = None, rt: Runtime = RT
) -> capacity.SetupReport:
    """Set a cloud target up, once, before the first deployment; asks first and reads back.

    Prepares APIs, service account, roles, registry, storage, network.

    Args:
        confirm: Token from the preview.
    """
    where, backend = choose_target(rt.stage, SetsUp, "be set up", target)
    seen = await backend.setup()
    await agree(rt, capacity.to_set_up(where, seen), confirm)
    return await capacity.set_up(rt, where, backend, seen)


@ops_tool("deploy", KNOWS)
async def get_vllm_gpu_deployment_config(
    model: str,
    gpus: Annotated[int, Field(ge=1, le=2)] = 1,
    hosts: Annotated[int, Field(ge=1, le=4)] = 1,
    name: Text = None,
    namespace: str = "default",
    weights: Text = None,
    max_model_len: Whole = None,
    layout: Layout = None,
    image: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Give a Kubernetes (GKE) manifest that serves a model on NVIDIA L4, with its commands.

    Args:
        gpus: L4 of each host.
        hosts: That one replica is spread over.
        weights: hub, gs://BUCKET/FOLDER or pvc:CLAIM/FOLDER.
        image: Best by digest.
    """
    wish = args_of(locals(), without=("rt",))
    from operations import manifests

    return manifests.config(rt.settings, wish)
