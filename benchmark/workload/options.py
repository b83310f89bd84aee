"""What every request says beside its prompt."""

from typing import Any, Literal, Protocol


class Asked(Protocol):
    """What `benchmark.records.Workload` asks for, and a worker's share of it says again.

    A worker that imported the record would pay for pydantic, a third of its start.
    """

    @property
    def api(self) -> Literal["completion", "chat"]: ...

    @property
    def output_tokens(self) -> int: ...

    @property
    def fixed_output(self) -> bool: ...

    @property
    def prefix_share(self) -> float: ...

    @property
    def dataset(self) -> str | None: ...

    @property
    def seed(self) -> int: ...


def options(workload: Asked, *, model: str, output_tokens: int) -> dict[str, Any]:
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
