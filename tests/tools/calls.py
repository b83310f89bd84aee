"""Every tool, with arguments that its kind of test calls it with."""

from typing import Any, Final

from core.environment import ROOT

MODEL: Final = "google/gemma-4-E2B-it"

LOOKING: Final[dict[str, dict[str, Any]]] = {
    "list_targets": {},
    "list_models": {},
    "plan_deployment": {"model": "12b qat", "target": "cloud-run-l4", "max_model_len": 8192},
    "recommend_deployment": {"model": "12b qat", "max_model_len": 8192},
    "estimate_cost": {"target": "cloud-run-l4", "model": "12b qat"},
    "compare_targets": {"models": ["12b qat"], "targets": ["cloud-run-l4", "aca-a100"]},
    "status_vllm": {},
    "list_deployments": {},
    "get_vllm_deployment_config": {},
    "get_endpoint": {},
    "get_model_details": {},
    "explain_deployment": {},
    "verify_model_health": {},
    "get_metrics": {},
    "get_system_status": {},
    "get_logs": {},
    "diagnose": {},
    "get_alert_rules": {},
    "analyze_cloud_logging": {},
    "analyze_gpu_logs": {},
    "suggest_sre_remediation": {},
    "query_gemma4": {"prompt": "Hello", "max_tokens": 8},
    "query_gemma4_with_stats": {"prompt": "Hello", "max_tokens": 8},
    "query_vllm": {"prompt": "Hello", "max_tokens": 8},
    "get_help": {},
    "list_operations": {},
    "get_benchmark": {},
    "list_benchmarks": {},
    "get_huggingface_model_copy_instructions": {"model": "12b qat", "bucket": "weights"},
    "get_vertex_ai_model_copy_instructions": {"model": "77", "bucket": "weights"},
    "get_huggingfacehub_download_path": {"model": "12b qat"},
    "get_vllm_gpu_deployment_config": {"model": "12b qat"},
}
"""Every tool that only looks or asks, with arguments that a ready deployment answers."""

RUNS: Final = ("20261121-120000-quick-one", "20261121-130000-quick-one")
ARTICLE: Final = ROOT / "tests" / "benchmark" / "imported" / "benchmark_sweep_results.csv"

CHANGING: Final[dict[str, dict[str, Any]]] = {
    "deploy_vllm": {"model": MODEL, "name": "one"},
    "update_vllm_scaling": {"min_replicas": 0, "max_replicas": 0},
    "stop_vllm": {},
    "start_vllm": {},
    "destroy_vllm": {},
}
"""Every tool that changes a deployment, with arguments that suit a stopped one, `one`."""

KEEPING: Final[dict[str, dict[str, Any]]] = {
    "stop_benchmark": {"run": RUNS[0]},
    "compare_benchmarks": {"benchmarks": list(RUNS)},
    "import_benchmark": {"file": str(ARTICLE)},
}
"""Every tool that writes nothing but files of benchmarks, with arguments that suit `plant_runs`."""

MEASURING: Final[dict[str, dict[str, Any]]] = {
    "run_benchmark": {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.3, "wait_s": 0}
}
"""What needs a deployment that is ready, and leaves a process behind."""

CLOUD_LOOKING: Final[dict[str, dict[str, Any]]] = {
    "check_gpu_quotas": {},
    "get_zones_with_available_quota": {},
    "list_queued_resources": {},
    "list_bucket_models": {"bucket": "weights", "target": "cloud-run-l4"},
    "list_vertex_models": {"target": "cloud-run-l4"},
}
"""Every tool that looks and needs a cloud to answer."""

CLOUD_WRITING: Final[dict[str, dict[str, Any]]] = {
    "setup_target": {"target": "cloud-run-l4"},
    "save_hf_token": {"token": f"hf_{'a' * 34}", "target": "cloud-run-l4"},
    "manage_queued_resource": {"action": "describe", "name": "one"},
}
"""Every tool that changes a cloud and no deployment."""

OF_TPUS: Final = frozenset(
    ("get_zones_with_available_quota", "list_queued_resources", "manage_queued_resource")
)
"""Those that only a target of Cloud TPU answers."""

OLD_LOOKING: Final[dict[str, dict[str, Any]]] = {
    "get_active_models": {},
    "get_system_details": {},
    "check_vllm": {},
    "get_vllm_endpoint": {},
    "status_azure_vm": {},
    "query_queued_gemma4": {"prompt": "Hello", "max_tokens": 8},
    "query_queued_gemma4_with_stats": {"prompt": "Hello", "max_tokens": 8},
    "describe_queued_resource": {"name": "vllm-devops-leftover"},
    "estimate_deployment_cost": {"target": "cloud-run-l4", "model": "12b qat"},
}
OLD_CHANGING: Final[dict[str, dict[str, Any]]] = {
    "run_vllm_benchmark": {"name": "nobody"},
    "stop_azure_vm": {},
    "start_azure_vm": {},
    "destroy_queued_resource": {"name": "one"},
}
OLD: Final = {**OLD_LOOKING, **OLD_CHANGING}
"""Every tool kept for its old name; those of a virtual machine want a deployment on Azure."""

CLOUD: Final = {**CLOUD_LOOKING, **CLOUD_WRITING}
"""They answer in a rehearsal; `test_cloud_tools.py` and `test_tpu_tools.py` have them do so."""

WRITING: Final = {**CHANGING, **KEEPING, **MEASURING}
EVERY: Final = {**LOOKING, **WRITING}
