"""What is to be called now, with every argument that the call needs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from backends.endpoint import NAME as ENDPOINT
from core.records import Deployment, DeploymentSpec, Step
from operations.diagnosis.records import Call

_BOTH: Final = frozenset(("target", "name"))
_TARGET: Final = frozenset(("target",))
_MODEL: Final = frozenset(("model",))
_NOTHING: Final = frozenset[str]()
_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "check_gpu_quotas": _TARGET,
    "compare_benchmarks": _NOTHING,
    "compare_targets": frozenset(("models",)),
    "deploy_vllm": _BOTH | _MODEL,
    "estimate_cost": _TARGET,
    "estimate_deployment_cost": _TARGET,
    "get_active_models": _TARGET,
    "get_benchmark": _NOTHING,
    "get_help": _NOTHING,
    "get_huggingface_model_copy_instructions": _TARGET | _MODEL,
    "get_huggingfacehub_download_path": _MODEL,
    "get_vertex_ai_model_copy_instructions": _NOTHING,
    "get_vllm_gpu_deployment_config": _MODEL,
    "get_zones_with_available_quota": _TARGET,
    "import_benchmark": _NOTHING,
    "list_benchmarks": _NOTHING,
    "list_bucket_models": _TARGET,
    "list_deployments": _TARGET,
    "list_models": _NOTHING,
    "list_queued_resources": _TARGET,
    "list_targets": _NOTHING,
    "list_vertex_models": _TARGET,
    "plan_deployment": _TARGET | _MODEL,
    "recommend_deployment": _MODEL,
    "save_hf_token": _TARGET,
    "setup_target": _TARGET,
    "stop_benchmark": _NOTHING,
    "update_vllm_scaling": _BOTH | {"min_replicas", "max_replicas"},
}
"""What each takes of what is known of a deployment; all others take target and name."""
_CHANGES: Final = frozenset(
    ("deploy_vllm", "destroy_vllm", "start_vllm", "stop_vllm", "update_vllm_scaling")
)
OF_A_SPEC: Final = frozenset(("deploy_vllm", "update_vllm_scaling"))
"""What is called with what was asked for before."""
_MOST: Final = 4

Given = str | int | float | bool | tuple[str, ...]


def calls(
    steps: Sequence[Step], now: Deployment, spec: DeploymentSpec | None = None
) -> tuple[Call, ...]:
    """Fill target, name and model in; what is somebody else's is never to be changed."""
    filled = (_filled(step, now, spec) for step in steps if _may(step, now))
    once: dict[str, Call] = {}
    for one in filled:
        once.setdefault(one.tool, one)
    return tuple(once.values())[:_MOST]


def _may(step: Step, now: Deployment) -> bool:
    return not (now.target == ENDPOINT and step.tool in _CHANGES)


def _filled(step: Step, now: Deployment, spec: DeploymentSpec | None) -> Call:
    takes = _TAKES.get(step.tool, _BOTH)
    known: dict[str, Given] = {"target": now.target, "name": now.name}
    if now.model != "not known":
        known |= {"model": now.model, "models": (now.model,)}
    if spec:
        more = 0 if step.arguments else 1  # what names no number asks for one replica more
        known |= {"min_replicas": spec.min_replicas, "max_replicas": spec.max_replicas + more}
    given = {name: word for name, word in known.items() if name in takes}
    if step.tool == "deploy_vllm" and spec:
        given |= dict(_asked_for(spec))
    filled = {**given, **step.arguments}
    return Call(
        tool=step.tool, arguments={name: word for name, word in filled.items() if word != ""}
    )


def _asked_for(spec: DeploymentSpec) -> Iterator[tuple[str, Given]]:
    """Ask for the same again: what a call leaves out would be the default, not what it was."""
    for name, value in spec.model_dump(mode="json", exclude_defaults=True).items():
        if name not in {"name", "model"}:
            yield name, tuple(value) if isinstance(value, list) else value
