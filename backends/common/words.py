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


def refuse_zones(spec: DeploymentSpec) -> None:
    """Refuse what is said of the search for a chip, where nothing is searched for.

    Raises:
        InvalidArgument: zones, zone_wait_minutes or control_plane is given.
    """
    if spec.zones or spec.zone_wait_minutes or spec.control_plane != "auto":
        raise InvalidArgument(
            "zones, zone_wait_minutes and control_plane are for Cloud TPU alone.",
            fix="Leave them out, or take a target whose name begins with tpu-.",
        )
