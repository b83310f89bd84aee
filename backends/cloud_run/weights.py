"""Where a deployment's weights come from, and what that asks of its container."""

import re
from typing import Final, Literal

from backends.cloud_run.rules import Bucket, rules
from backends.common.words import said
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec
from planner.model import is_path

_BUCKET: Final = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[^/]+)+)/?")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
_LOADERS: Final = ("--load-format", "--safetensors-load-strategy")
"""With either of them the caller has chosen how files are read."""


class Mount(Record):
    """A bucket as a folder that can be read."""

    bucket: str
    path: str
    options: tuple[str, ...]
    """Of gcsfuse, without dashes."""


class Weights(Record):
    """Where they come from."""

    kind: Literal["hub", "bucket", "baked"]
    model: str
    """What `vllm serve` is given."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mount: Mount | None = None
    boot_source: str
    """Its row of `planner/boot.toml`."""

    @property
    def fills_memory(self) -> bool:
        """Whether the files lie on the instance's own disk, which is its memory."""
        return self.kind == "hub"


def weights_of(spec: DeploymentSpec) -> Weights:
    """Say where the weights come from.

    Raises:
        InvalidArgument: There is no such place, or what it needs is missing.
    """
    match spec.weights or "hub":
        case "hub":
            return _hub(spec)
        case "baked":
            return _baked(spec)
        case location:
            return _bucket(spec, location)


def _hub(spec: DeploymentSpec) -> Weights:
    if is_path(spec.model):
        raise InvalidArgument(
            f"Cloud Run does not see {spec.model}, a folder of this machine.",
            fix="Copy it into a bucket and give weights=gs://BUCKET/FOLDER, or give a Hub id.",
        )
    return Weights(kind="hub", model=spec.model, boot_source="hub")


def _baked(spec: DeploymentSpec) -> Weights:
    if not spec.image:
        raise InvalidArgument(
            "Weights that are baked into an image need the image.",
            fix="Give image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…",
        )
    return Weights(kind="baked", model=spec.model, env=_OFFLINE, boot_source="baked")


def _bucket(spec: DeploymentSpec, location: str) -> Weights:
    found = _BUCKET.fullmatch(location)
    if not found or {".", ".."} & set(found[2].split("/")):
        raise InvalidArgument(
            f"{location} is no folder of a bucket.", fix="Give gs://BUCKET/FOLDER."
        )
    chosen: Bucket = rules().bucket
    own = any(said(spec.engine_args, flag) is not None for flag in _LOADERS)
    streamed = not own or said(spec.engine_args, "--load-format") == chosen.load_format
    return Weights(
        kind="bucket",
        model=f"{chosen.mount_path}{found[2]}",
        args=() if own else ("--load-format", chosen.load_format),
        env=_OFFLINE,
        mount=Mount(bucket=found[1], path=chosen.mount_path, options=chosen.mount_options),
        boot_source="gcs-streamed" if streamed else "gcs-fuse",
    )
