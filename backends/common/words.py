"""What engine_args say, beside the flags that a spec has fields for."""

from typing import Final

from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape
from planner.flags import Flags, positions

_SPREADING: Final = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
)


def said(words: tuple[str, ...], *names: str) -> str | None:
    """Give what engine_args last say for a flag, None if nothing.

    >>> said(("--max-num-seqs", "8", "--max_num_seqs=16"), "--max-num-seqs")
    '16'
    """
    found = None
    for position, word in enumerate(words):
        flag, joined, value = word.partition("=")
        if flag.replace("_", "-") in names:
            found = value if joined else "".join(words[position + 1 : position + 2])
    return found


def spread_in(words: tuple[str, ...]) -> bool:
    """Whether engine_args spread a model over several accelerators."""
    return any((said(words, *names) or "1") != "1" for names in _SPREADING)


def refuse_spread(spec: DeploymentSpec, replica: str) -> None:
    """Refuse what one GPU for each `replica`, such as "An instance of Cloud Run", cannot do.

    Raises:
        InvalidArgument: The spec wants more accelerators, or an impossible number of replicas.
    """
    if spec.tensor_parallel_size > 1 or spread_in(spec.engine_args):
        raise InvalidArgument(
            f"{replica} has one GPU: the model cannot be spread over several.",
            fix="Leave tensor and pipeline parallelism out, or take a target with more of them.",
        )
    if spec.min_replicas > spec.max_replicas:
        raise InvalidArgument(
            f"min_replicas {spec.min_replicas} is more than max_replicas {spec.max_replicas}.",
            fix="Give max_replicas at least as many.",
        )


def refuse_length(spec: DeploymentSpec, model: ModelShape) -> None:
    """Refuse sequences that the model was not made for, unless its configuration is overridden.

    Raises:
        InvalidArgument: max_model_len, or the one in engine_args, is beyond its positions.
    """
    flags = Flags.of(spec)
    most, wanted = positions(model, flags), flags.max_model_len or 0
    if most and wanted > most:
        raise InvalidArgument(
            f"max_model_len {wanted} is beyond the model's {most}.",
            fix=f"Give {most} or less, or leave it out.",
        )


_ONLY: Final = {
    "Cloud TPU": ("zones", "zone_wait_minutes", "control_plane", "boot_disk_gb"),
    "Cloud Run": ("launch_stage", "build_machine", "cpu", "memory_gib"),
    "Container Apps": ("cpu", "memory_gib"),
}
"""What a spec says that only some clouds have."""


def refuse_others(spec: DeploymentSpec, cloud: str) -> None:
    """Refuse what only other clouds than this one have; it would be taken here and mean nothing.

    Raises:
        InvalidArgument: One of those is given.
    """
    plain = DeploymentSpec(name=spec.name, model=spec.model)
    foreign = {field for fields in _ONLY.values() for field in fields} - {*_ONLY.get(cloud, ())}
    given = [name for name in sorted(foreign) if getattr(spec, name) != getattr(plain, name)]
    if cloud != "Container Apps" and spec.weights in {"hub:disk", "hub:share"}:
        raise InvalidArgument(
            f"weights={spec.weights} is for Container Apps alone.", fix="Give weights=hub."
        )
    if given:
        where = [name for name, fields in _ONLY.items() if given[0] in fields]
        raise InvalidArgument(
            f"{given[0]} is for {' and '.join(where)} alone.",
            fix=f"Leave {', '.join(given)} out, or take a target there (list_targets).",
        )
