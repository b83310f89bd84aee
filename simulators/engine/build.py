"""An engine and its web server, put together from flags and knobs."""

from argparse import Namespace

from starlette.applications import Starlette
from starlette.middleware import Middleware

from simulators.engine.answers import Served
from simulators.engine.app import make_app
from simulators.engine.boot import Setup
from simulators.engine.engine import Engine, Voice
from simulators.engine.flags import Environment, Failure, Knobs
from simulators.engine.metrics import EngineMetrics, stats_logger
from simulators.engine.model import GIB, CachePlan, load_tokenizer
from simulators.engine.scheduler import Device, Limits, Scheduler, Timed
from simulators.engine.wire_errors import Sabotage


def build_served(
    flags: Namespace,
    setup: Setup,
    plan: CachePlan,
    knobs: Knobs,
    device: Timed | None = None,
) -> Served:
    """One model on one engine; its steps take as long as `device` says, else as the knobs do."""
    names = tuple(flags.served_model_name or [setup.model.name])
    tools = bool(flags.tool_call_parser)
    metrics = EngineMetrics(
        names[0],
        max_model_len=plan.max_model_len,
        cache_config=_cache_config(flags, setup, plan),
        tool_parser=tools and bool(flags.enable_auto_tool_choice),
    )
    return Served(
        names=names,
        root=setup.model.name,
        max_model_len=plan.max_model_len,
        vocab_size=setup.model.vocab_size,
        engine=_engine(
            flags, setup, plan, knobs, metrics, device or _device(flags, setup, plan, knobs)
        ),
        metrics=metrics,
        max_logprobs=flags.max_logprobs,
        multimodal=setup.model.multimodal,
        reasoning_parser=bool(flags.reasoning_parser),
        tool_parser=tools,
        auto_tools=bool(flags.enable_auto_tool_choice),
        cache_details=bool(flags.enable_prompt_tokens_details),
    )


def build_app(
    served: Served, flags: Namespace, environment: Environment, knobs: Knobs, failure: Failure
) -> Starlette:
    """The web server around it, with its keys and its ways to fail."""
    keys = [*(flags.api_key or ())]
    if not keys and environment.vllm_api_key:
        keys = [environment.vllm_api_key]
    around = [Middleware(Sabotage, failure, knobs.slow_health_seconds)] if failure.mode else []
    averages = stats_logger(served.engine.scheduler, served.metrics)
    return make_app(
        served,
        keys=keys,
        origins=flags.allowed_origins or (),
        around=around,
        beside=[] if flags.disable_log_stats else [averages],
    )


def _device(flags: Namespace, setup: Setup, plan: CachePlan, knobs: Knobs) -> Device:
    return Device(
        bytes_per_s=knobs.device_gb_per_s * 1e9 * flags.tensor_parallel_size,
        prefill_tokens_per_s=knobs.device_prefill_tokens_per_s * flags.tensor_parallel_size,
        weights_bytes=setup.weights_gib * GIB * flags.tensor_parallel_size,
        kv_bytes_per_token=plan.bytes_per_token,
        time_scale=knobs.pace,
        fixed_step_seconds=None if knobs.step_ms is None else knobs.step_ms / 1000,
    )


def _engine(
    flags: Namespace,
    setup: Setup,
    plan: CachePlan,
    knobs: Knobs,
    metrics: EngineMetrics,
    device: Timed,
) -> Engine:
    limits = Limits(
        block_size=setup.block_size,
        num_blocks=plan.scheduler_blocks(setup.block_size),
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        prefix_caching=bool(flags.enable_prefix_caching),
        chunked_prefill=bool(flags.enable_chunked_prefill),
    )
    return Engine(
        Scheduler(limits),
        device,
        load_tokenizer(setup.model.folder, setup.model.vocab_size),
        observer=metrics,
        eos=setup.model.eos_tokens,
        voice=Voice(seed=knobs.seed, reply=knobs.reply, mean_tokens=knobs.output_tokens),
    )


def _cache_config(flags: Namespace, setup: Setup, plan: CachePlan) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` that are not None. source: vllm 0.32.0, 2026-11-20."""
    return {
        "_block_size_resolved": "True",
        "block_size": str(setup.block_size),
        "cache_dtype": flags.kv_cache_dtype,
        "effective_attention_block_size": str(setup.block_size),
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": str(bool(flags.enable_prefix_caching)),
        "gpu_memory_utilization": str(flags.gpu_memory_utilization),
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_max_concurrency": str(plan.max_concurrency),
        "kv_cache_memory_bytes": str(flags.kv_cache_memory_bytes),
        "kv_cache_size_tokens": str(plan.tokens),
        "kv_offloading_backend": "native",
        "kv_sharing_fast_prefill": "False",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_ssm_cache_dtype": "auto",
        "num_gpu_blocks": str(plan.num_blocks),
        "num_gpu_blocks_override": str(flags.num_gpu_blocks_override),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "replayssm_buffer_len": "16",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": str(flags.block_size is not None),
    }
