"""Every tool there is, registered by being imported."""

from tools import (
    alerts,
    analyse,
    ask,
    benchmark,
    cloud_models,
    compat,
    deploy,
    diagnose,
    explain,
    help,  # noqa: A004  the tool's group
    journal,
    models,
    observe,
    plan,
    quota,
    setting_up,
    tpu,
)

__all__ = [
    "alerts",
    "analyse",
    "ask",
    "benchmark",
    "cloud_models",
    "compat",
    "deploy",
    "diagnose",
    "explain",
    "help",
    "journal",
    "models",
    "observe",
    "plan",
    "quota",
    "setting_up",
    "tpu",
]
