"""What every request says beside its prompt."""

from typing import Any

from benchmark.records import Workload


def options(workload: Workload, *, model: str, output_tokens: int) -> dict[str, Any]:
    """Give the fields of a streamed request whose usage is told at its end.

    A chat asks for the usage with every event, because only so reasoning tokens are told apart as
    they come.
    """
    usage = {"include_usage": True}
    if workload.api == "chat":
        usage["continuous_usage_stats"] = True
    asked = {"model": model, "stream": True, "stream_options": usage, "max_tokens": output_tokens}
    if workload.fixed_output:
        asked |= {"min_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
    return asked
