"""The container that serves a model, before it is said in any cloud's words."""

import shlex
from collections.abc import Mapping
from typing import Final

from backends.common.words import said
from backends.common.written import assigned
from backends.vllm_args import vllm_flags
from core.record import Record
from core.records import DeploymentSpec, ModelShape
from planner.accelerators import accelerator
from planner.boot import Boot
from planner.defaults import resolve
from planner.flags import Flags
from planner.places import Place

PORT: Final = 8000
_QUIET: Final = "--disable-access-log-for-endpoints=/health,/metrics,/ping"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  of the container
LOOPBACK: Final = "127.0.0.1"


class Container(Record):
    """What runs in a replica."""

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str] = {}
    """The cloud's secrets, by the variable that holds them."""
    port: int
    health: str
    """The path that answers once it serves."""


class Probe(Record):
    """An HTTP probe."""

    path: str
    port: int
    period_seconds: int
    timeout_seconds: int
    failures: int
    """In a row, after which the replica is given up."""
    initial_delay_seconds: int = 0

    @property
    def budget_seconds(self) -> int:
        """How long a replica may take."""
        return self.initial_delay_seconds + self.period_seconds * self.failures


def serve(
    spec: DeploymentSpec, model: str, *more: str, host: str = EVERYWHERE, port: int = PORT
) -> tuple[str, ...]:
    """Give what follows `vllm` on its command line, `more` before the spec's own flags."""
    named = ("--served-model-name", spec.served_model_name)
    listen = ("--host", host, "--port", str(port))
    # Another image may hold another version, which need not know this flag.
    quiet = () if spec.image else (_QUIET,)
    return ("serve", model, *named, *more, *vllm_flags(spec), *listen, *quiet)


def requests_at_once(spec: DeploymentSpec, model: ModelShape, place: Place, usual: int) -> int:
    """Give how many requests vLLM takes at once; `usual` is its default where no shape is known."""
    own = said(spec.engine_args, "--max-num-seqs")
    if own and own.isdecimal():
        return max(1, int(own))
    if not (model.layers and model.groups):
        return spec.max_num_seqs or usual
    return resolve(model, accelerator(place.accelerator), Flags.of(spec)).max_num_seqs


def inside(foreseen: Boot) -> float:
    """Sum up what a startup probe sees; the host and its image come before it."""
    spans = (phase.seconds for phase in foreseen.phases if phase.name != "host and image")
    return sum(span.high for span in spans)


def size_known(model: ModelShape) -> bool:
    """Whether anybody knows how large the model's files are."""
    return bool(model.weight_bytes or any(group.stored_bytes for group in model.groups))


def docker(name: str, container: Container, *mounted: str) -> str:
    """Run the same engine on a machine with a GPU of one's own; `mounted` as `-v` takes them."""
    # The machine's own port is on its loopback, which is not that of the container.
    args = [EVERYWHERE if word == LOOPBACK else word for word in container.args]
    words = ["docker", "run", "--rm", "--gpus=all", "--ipc=host", f"--name={name}"]
    words += ["-p", f"127.0.0.1:{container.port}:{container.port}"]
    words += [word for variable in container.secrets for word in ("-e", variable)]
    words += [word for pair in assigned(container.env) for word in ("-e", pair)]
    words += [word for folder in mounted for word in ("-v", folder)]
    words += [f"--entrypoint={container.command[0]}", container.image]
    return shlex.join([*words, *container.command[1:], *args])
