"""Tools that foresee and explain: where a model can run, how fast, at what price."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from core.records import Answer
from operations.runtime import Runtime
from planner.flags import size_in_bytes
from tools.deploy import Carried, Keeper, Plane, Stage
from tools.surface import KNOWS, LOOKS, RT, Layout, Number, Text, Whole, Words, args_of, ops_tool

_NOT_FLAGS = ("model", "target", "layout", "check", "region", "rt")
_SOURCE = (
    *("weights", "image", "zones", "control_plane", "engine_args", "env", "cpu", "memory_gib"),
    *("launch_stage", "build_machine", "boot_disk_gb", "compile_cache"),
    *("ttl_minutes", "max_usd", "max_idle_minutes", "lease", "schedule"),
)
"""Where weights, image and chips come from, what ends it: what no plan of memory needs."""
NOT_OF_A_LOAD = (
    "hours_per_day", "days_per_week", "requests_per_day", "tokens_per_day", "region",
)  # fmt: skip
Quality = Literal["small", "medium", "large"] | SkipJsonSchema[None]


@ops_tool("plan", KNOWS, default=True)
async def list_targets(rt: Runtime = RT) -> Answer:
    """List places to deploy to: clouds, GPUs and TPUs, costs, what is configured or to set up."""
    from operations import targets

    return await targets.list_all(rt)


_SELDOM = (
    *("gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens", "quantization"),
    *("cpu_offload_gb", "enforce_eager", "vllm_version", "zones", "control_plane", "image"),
    *("region", "env", "cpu", "memory_gib", "launch_stage", "build_machine", "boot_disk_gb"),
    *("ttl_minutes", "max_usd", "max_idle_minutes", "lease", "schedule", "compile_cache"),
)
"""Of vLLM's flags those that a plan is seldom asked about; all are explained by get_help."""


@ops_tool("plan", LOOKS, default=True, seldom=_SELDOM)
async def plan_deployment(
    model: str,
    target: Text = None,
    max_model_len: Whole = None,
    gpu_memory_utilization: Number = None,
    kv_cache_dtype: Text = None,
    kv_cache_memory_bytes: Text = None,
    max_num_seqs: Whole = None,
    max_num_batched_tokens: Whole = None,
    tensor_parallel_size: Whole = None,
    quantization: Text = None,
    cpu_offload_gb: Number = None,
    enforce_eager: bool = False,
    layout: Layout = None,
    vllm_version: Text = None,
    weights: Text = None,
    image: Text = None,
    zones: Words = None,
    control_plane: Plane | SkipJsonSchema[None] = None,
    engine_args: Words = None,
    env: Words = None,
    cpu: Number = None,
    memory_gib: Number = None,
    launch_stage: Stage | SkipJsonSchema[None] = None,
    build_machine: Text = None,
    boot_disk_gb: Whole = None,
    compile_cache: Carried | SkipJsonSchema[None] = None,
    ttl_minutes: Whole = None,
    max_usd: Number = None,
    max_idle_minutes: Whole = None,
    lease: Keeper | SkipJsonSchema[None] = None,
    schedule: Text = None,
    region: Text = None,
    check: bool = False,
    rt: Runtime = RT,
) -> Answer:
    """Say if a model fits a target (dry run): memory, context, users, cold start, price, flags.

    Gives memory layout, KV cache, 4 bit quant of it, CPU offloading, boot time, the nearest fit.

    Args:
        model: Hub id, folder, or short name such as `12b qat`.
        target: See list_targets.
        layout: Compute the flags.
        engine_args: Other vllm serve flags, one word each.
        check: Ask the cloud too: quota, permissions, weights.
    """
    given = locals()
    source = {name: given[name] for name in _SOURCE}
    flags = args_of(given, without=(*_NOT_FLAGS, *_SOURCE))
    from operations import capacity, planning, targets

    flags |= {"kv_cache_memory_bytes": size_in_bytes(kv_cache_memory_bytes)}
    own = image is not None
    where = targets.place_named(
        rt, target, own_image=own, weights=weights, compile_cache=compile_cache
    )
    where = targets.limited_to(where, region).sized(round(cpu or 0), round(memory_gib or 0))
    plan = planning.plan_for(
        where, model, flags, layout, engine_args or (), journal=rt.stage.journal
    )
    if region:
        source["zones"] = zones or targets.zones_of(where)
        plan = plan.model_copy(update={"region": targets.goes_to(rt, where)[1]})
    return await capacity.with_backend_checks(rt, plan, check=check, source=source)


@ops_tool("plan", KNOWS, default=True, seldom=("layout", "usd_per_month", "hours_per_month"))
async def recommend_deployment(
    model: Text = None,
    quality: Quality = None,
    max_model_len: Whole = None,
    users: Whole = None,
    tokens_per_second_per_user: Number = None,
    usd_per_hour: Number = None,
    usd_per_month: Number = None,
    hours_per_month: Number = None,
    scale_to_zero: bool = False,
    layout: Layout = None,
    targets: Words = None,
    region: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Recommend which model and GPU (L4, A100) or TPU is best or cheapest: options ranked, and why.

    Args:
        model: Hub id or short name such as `31b qat`; else quality.
        users: At once, each with a full-length request.
        usd_per_hour: At most.
        targets: Only these.
    """
    goal = args_of(locals(), without=("targets", "region", "rt"))
    from operations import advice

    return advice.recommend(rt, goal, targets or (), region)


@ops_tool("plan", KNOWS, default=True, seldom=("hours_per_month", "region"))
async def estimate_cost(
    target: Text = None,
    model: Text = None,
    hours_per_month: Number = None,
    hours_per_day: Number = None,
    days_per_week: Number = None,
    requests_per_day: Whole = None,
    tokens_per_day: Whole = None,
    users: Whole = None,
    prompt_tokens: Whole = None,
    output_tokens: Whole = None,
    region: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Price a target by hour and month: the bill, and the cost per token, request and user."""
    asked = locals()
    from operations import costs

    goal = args_of(asked, without=("target", "model", "rt", *NOT_OF_A_LOAD))

    hours = {name: value for name, value in asked.items() if name in costs.HOURS}
    return costs.cost(rt, target, model, goal, hours, region)


@ops_tool("plan", KNOWS)
async def compare_targets(
    models: Annotated[list[str], Field(min_length=1, max_length=8)],
    targets: Words = None,
    max_model_len: Whole = None,
    users: Whole = None,
    hours_per_month: Number = None,
    rt: Runtime = RT,
) -> Answer:
    """Compare models and targets side by side: which is better, faster, cheaper.

    One table of fit, performance, boot and price per hour and token over clouds, GPUs, TPUs.

    Args:
        targets: All, if left out.
    """
    goal = args_of(locals(), without=("models", "targets", "rt"))
    from operations import costs

    return costs.comparison(rt, models, targets or (), goal)


@ops_tool("observe", LOOKS, default=True)
async def explain_deployment(
    target: Text = None,
    name: Text = None,
    other: Text = None,
    flags: Words = None,
    rt: Runtime = RT,
) -> Answer:
    """Explain a deployment: each flag in numbers, trade-offs, best practices, what changes do.

    Is the startup timeout of the health check long enough to load the model?

    Args:
        other: A deployment to compare with.
        flags: Changes to judge, such as --max-model-len=8192.
    """
    from operations.explain import explain

    return await explain(rt, target, name, other=other, flags=flags)
