"""Every tool there is, registered by being imported."""

from tools import ask, benchmark, compat, deploy, diagnose, help, models, observe, plan, quota  # noqa: A004

__all__ = [
    "ask",
    "benchmark",
    "compat",
    "deploy",
    "diagnose",
    "help",
    "models",
    "observe",
    "plan",
    "quota",
]
