"""What is measured: the model, its engine and the tokens that prompts are made of."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmark.runs import Subject
from benchmark.workload.alphabet import alphabet
from core.endpoint import Endpoint, ServedModel
from core.errors import EndpointError, ModelNotServed
from core.metrics import CacheConfig, MetricsPage

_SMALLEST_ENGINE_BYTES: Final = 256 * 2**20
"""A Python process that holds torch takes twice as much; the simulated engine takes 80 MiB."""


class Seen(NamedTuple):
    """An endpoint, looked at once before anything is measured."""

    subject: Subject
    token_ids: tuple[int, ...]
    """Ordinary ones, for prompts of the completion API."""
    words: tuple[str, ...] = ()
    """Texts of one token each, for prompts of the chat API."""
    template_tokens: int = 0
    """What a chat's prompt has beyond its words."""
    notes: tuple[str, ...] = ()
    """What could not be learned, in sentences."""


class _Page(NamedTuple):
    cache: CacheConfig | None = None
    process_start_time: float | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()


async def look(endpoint: Endpoint, model: str | None) -> Seen:
    """Look at an endpoint: what it serves, in which version, how its KV cache is sized.

    Without a name, the first model it serves is meant. What an engine does not tell is None.

    Raises:
        ModelNotServed: It serves other models, or none.
        EndpointError: /v1/models does not answer as it should.
    """
    served = await endpoint.models()
    chosen = _chosen(served, model)
    page = await _page(endpoint)
    letters = await alphabet(endpoint, chosen.id)
    subject = Subject(
        model=chosen.id,
        max_model_len=chosen.max_model_len,
        vllm_version=await _version(endpoint),
        cache=page.cache,
        process_start_time=page.process_start_time,
        simulated=page.simulated,
    )
    return Seen(
        subject,
        letters.token_ids,
        letters.words,
        letters.template_tokens,
        (*_which(served, model, chosen), *page.notes, *letters.notes),
    )


def _chosen(served: Sequence[ServedModel], model: str | None) -> ServedModel:
    fitting = [one for one in served if model in {None, one.id}]
    if not fitting:
        names = ", ".join(one.id for one in served[:10]) or "no model"
        raise ModelNotServed(
            f"The endpoint serves {names}, not {model or 'a model'}.",
            fix="Name a model that it serves, or none.",
        )
    return fitting[0]


def _which(
    served: Sequence[ServedModel], model: str | None, chosen: ServedModel
) -> tuple[str, ...]:
    if model is not None or len(served) < 2:
        return ()
    return (f"{len(served)} models are served; {chosen.id} is measured.",)


async def _version(endpoint: Endpoint) -> str | None:
    try:
        return await endpoint.version()
    except EndpointError:
        return None


async def _page(endpoint: Endpoint) -> _Page:
    try:
        page = MetricsPage(await endpoint.metrics_text())
    except EndpointError:
        return _Page(notes=("The engine has no readable /metrics: its own view is missing.",))
    cache = page.engine().cache
    return _Page(
        cache=cache if cache != CacheConfig() else None,
        process_start_time=_only(page, "process_start_time_seconds"),
        simulated=_is_simulated(page),
    )


def _only(page: MetricsPage, name: str) -> float | None:
    rows = [row.value for row in page.matching(name) if row.name == name]
    return rows[0] if len(rows) == 1 else None


def _is_simulated(page: MetricsPage) -> bool:
    """Tell the simulated engine by its size: in all that it says it is as the real one.

    A front end that is no Python program is small as well, and is not meant.
    """
    resident = _only(page, "process_resident_memory_bytes")
    python = page.matching("python_info")
    speaks_vllm = page.matching("vllm:cache_config_info")
    return bool(python and speaks_vllm and resident and resident < _SMALLEST_ENGINE_BYTES)
