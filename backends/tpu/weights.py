"""Where a deployment's weights come from."""

from typing import Final, Literal

from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec
from planner.model import is_path

_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}


class Weights(Record):
    """Where they come from."""

    kind: Literal["hub", "baked"]
    env: dict[str, str] = {}

    @property
    def boot_source(self) -> str:
        """Its row of `planner/boot.toml`."""
        return self.kind


def weights_of(spec: DeploymentSpec) -> Weights:
    """Say where the weights come from.

    Raises:
        InvalidArgument: A VM with chips does not read them from there, or an image is missing.
    """
    match spec.weights or "hub":
        case "hub":
            return _hub(spec)
        case "baked":
            return _baked(spec)
        case location:
            raise InvalidArgument(
                f"VMs with TPUs do not read {location} here: its files would have to be copied"
                " to the VM first.",
                fix="Leave weights out: the VM fetches them from the Hugging Face Hub; or bake"
                " them into an image (weights=baked, image=…).",
            )


def _hub(spec: DeploymentSpec) -> Weights:
    if is_path(spec.model):
        raise InvalidArgument(
            f"A VM with TPUs does not see {spec.model}, a folder of this machine.",
            fix="Give a Hub id, or bake the files into an image (weights=baked, image=…).",
        )
    return Weights(kind="hub")


def _baked(spec: DeploymentSpec) -> Weights:
    if not spec.image:
        raise InvalidArgument(
            "Weights that are baked into an image need the image.",
            fix="Give image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…",
        )
    return Weights(kind="baked", env=_OFFLINE)
