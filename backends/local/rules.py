"""What this machine allows, warns of and leaves behind."""

from collections.abc import Sequence
from typing import Final

from backends.base import Leaving
from backends.local.engine import Engine
from backends.local.folder import Folder, Made
from backends.local.identity import Seen
from backends.local.ports import claim
from core.errors import DoesNotFit, InvalidArgument, NextStep, PortInUse
from core.plans import Check, MemoryPlan
from core.records import SIMULATED, DeploymentSpec, Remainder
from planner.model import is_path

KEYLESS: Final = ("/invocations", "/generative_scoring")
"""Where vLLM 0.32 computes without its key. source: tests/real/test_open.py asks every route."""
PROTECTION: Final = (
    "Listens on 127.0.0.1 only, over plain HTTP. vLLM's key protects /v1 alone: POST "
    f"{' and POST '.join(KEYLESS)} compute for every user of this machine, and /metrics and "
    "/tokenize answer them."
)
_LISTENS: Final = "listens on a unix socket that only you reach, and on no port"
SOCKET: Final = (
    f"It {_LISTENS}: its folder lets in nobody else but root. vLLM's key protects /v1 besides."
)
_INTERNAL: Final = f"access=internal: it {_LISTENS}."
_SHARED: Final = (
    "Every user of this machine can use it without its key, at POST /invocations; access=internal:"
    " a unix socket that only you reach."
)


def check_port(port: int) -> Check:
    try:
        claim(port)
    except PortInUse as exc:
        return Check(what="port", outcome="fail", detail=exc.summary, fix=exc.fix)
    return Check(what="port", outcome="pass", detail=f"{port} is free")


def warnings(engine: Engine, spec: DeploymentSpec) -> tuple[str, ...]:
    internal = spec.access == "internal"
    if engine.kind == "simulated":
        return (SIMULATED, _INTERNAL) if internal else (SIMULATED,)
    reached = _INTERNAL if internal else _SHARED
    if is_path(spec.model):
        return (reached,)
    return (
        reached,
        f"vLLM downloads {spec.model} from the Hugging Face Hub unless it is here already.",
    )


def stays(made: Made | None) -> tuple[Remainder, ...]:
    if made is None or made.engine.kind == "simulated" or is_path(made.spec.model):
        return ()
    what = f"the files of {made.spec.model} in the Hugging Face cache of this machine"
    return (Remainder(what=what, usd_per_month=0.0, how_to_remove="hf cache rm"),)


def removed(ended: Sequence[Seen], *, damaged: bool) -> tuple[str, ...]:
    """Say what a deletion took away; of a damaged one which processes were found to be its own."""
    processes, numbers = "its processes", ", ".join(str(one.pid) for one in ended)
    if damaged:
        processes += f" (found by its folder: pid {numbers})" if ended else " (none was found)"
    return (processes, "its folder with key and log")


def left(other: Seen) -> Remainder:
    """Name a process that works in a damaged deployment's folder and may be anybody's."""
    return Remainder(
        what=f"process {other.pid}, which worked in its folder and is not proven to be its own",
        usd_per_month=0.0,
        how_to_remove=f"Look at it with `ps {other.pid}`, and end it if it is an engine.",
    )


def leaving(folder: Folder) -> Leaving:
    """Name what a deletion takes away, and what it leaves."""
    deletes = ("its processes", f"its folder {folder.path.name} with key and log")
    return Leaving(
        deletes=deletes, stays=tuple(one.what for one in stays(folder.made_if_readable()))
    )


def too_few(wanted: int, there: int) -> InvalidArgument:
    """Refuse to spread a model over more accelerators than there are."""
    return InvalidArgument(
        f"tensor_parallel_size {wanted} needs as many accelerators; this machine has {there}.",
        fix=f"Give {max(there, 1)} or less.",
    )


def refuse_clouds(spec: DeploymentSpec) -> None:
    """Refuse what only a cloud has; it would be taken here and mean nothing.

    Raises:
        InvalidArgument: network, image, weights, engine or access=public is given, or a port
            beside a socket.
    """
    if spec.access == "internal" and spec.port:
        raise InvalidArgument(
            "port: with access=internal it listens on a unix socket, and on no port.",
            fix="Leave port or access out.",
        )
    given = {
        "access": spec.access == "public",
        "network": spec.network is not None,
        "image": spec.image is not None,
        "weights": spec.weights not in {None, "hub"},
        "engine": spec.engine != "vllm",
    }
    names = [name for name, meant in given.items() if meant]
    if names:
        raise InvalidArgument(
            f"{', '.join(names)}: this machine has no such choice. It serves vLLM from the Hub or"
            " a folder, at 127.0.0.1 or (access=internal) on a unix socket.",
            fix=f"Leave {', '.join(names)} out, or take a cloud's target (list_targets).",
            next_steps=(NextStep("list_targets"),),
        )


def no_room(name: str, memory: MemoryPlan) -> DoesNotFit:
    """Refuse to start what found room when it was deployed and does not now."""
    return DoesNotFit(
        f"There is no room for {name} on this machine now: {' '.join(memory.reasons)}",
        fix="Stop something else that runs here, or call deploy_vllm again with a shorter"
        " max_model_len or a smaller model; there force=true tries all the same.",
        next_steps=(NextStep("list_deployments"),),
    )


def one_replica() -> InvalidArgument:
    return InvalidArgument(
        "This machine runs one replica of a deployment, or none.",
        fix="Give 0 or 1, or deploy a second one under another name.",
    )
