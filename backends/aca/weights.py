"""Where a deployment's weights come from, and what that asks of its container."""

import hashlib
import re
from typing import Final, Literal

from backends.aca.names import SHARE
from backends.aca.rules import rules
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, ModelShape
from planner.boot import stored_bytes
from planner.model import is_path
from planner.places import Place

_FOLDER: Final = re.compile(r"files://([a-z0-9](?:-?[a-z0-9]){2,62})((?:/[^/]+)+)/?")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
FILES: Final = "azure-files"


class Mount(Record):
    """A file share as a folder."""

    share: str
    link: str
    """What the environment calls the share."""
    path: str
    read_only: bool


class Weights(Record):
    """Where they come from."""

    kind: Literal["hub", "files", "baked"]
    model: str
    """What `vllm serve` is given."""
    env: dict[str, str] = {}
    mount: Mount | None = None
    boot_source: str
    """Its row of `planner/boot.toml`, once the files are where they stay."""
    doubts: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether what is downloaded at the first boot stays for the later ones."""
        return self.kind == "hub" and self.mount is not None


def weights_of(spec: DeploymentSpec, model: ModelShape, place: Place) -> Weights:
    """Say where the weights come from; `place` is what the planner knows of the target.

    Raises:
        InvalidArgument: There is no such place, or what it needs is missing.
    """
    match spec.weights or "hub":
        case "hub" | "hub:disk" | "hub:share":
            return _hub(spec, model, place)
        case "baked":
            return _baked(spec)
        case location:
            return _folder(location)


def link_of(share: str, *, read_only: bool) -> str:
    """Name an environment's link to a share; each way to open it is a link of its own.

    Its name is shorter than a share's may be, and begins with a letter.

    >>> link_of("weights", read_only=True), link_of("2026", read_only=False)
    ('weights-ro', 's-158a323a7ba4')
    """
    end = "-ro" if read_only else ""
    if share[0].isdigit() or len(share + end) > rules().limits.link_characters:
        share = f"s-{hashlib.sha256(share.encode()).hexdigest()[:12]}"
    return f"{share}{end}"


def _hub(spec: DeploymentSpec, model: ModelShape, place: Place) -> Weights:
    if is_path(spec.model):
        raise InvalidArgument(
            f"Azure does not see {spec.model}, a folder of this machine.",
            fix="Copy it to a file share and give weights=files://SHARE/FOLDER, or give a Hub id.",
        )
    gib, fits = stored_bytes(model) / 2**30, place.hub_disk_gib or 0
    size = f"{gib:.1f} GiB" if gib else "files of a size that is not known"
    seen = (
        f"{fits:g} GiB were seen to fit on the disk of a container with a GPU; how large that disk"
        " is, is not known"
    )
    low, high = rules().share.usd_per_month
    if spec.weights == "hub:disk" or (spec.weights != "hub:share" and 0 < gib <= fits):
        risk = f" ({seen}: a full one ends the boot and says so)" if not 0 < gib <= fits else ""
        doubt = (
            f"Every start downloads {size} of {spec.model} from the Hugging Face Hub to the"
            f" container's disk{risk}; weights=hub:share keeps them on a file share, which costs"
            f" about ${low:.0f} to ${high:.0f} a month."
        )
        return Weights(kind="hub", model=spec.model, boot_source="hub", doubts=(doubt,))
    why = "" if 0 < gib <= fits else f", as {seen} (weights=hub:disk tries it, without a share)"
    doubt = (
        f"The first boot downloads {size} to the share {SHARE}, and later ones read them there"
        f"{why}."
    )
    return Weights(
        kind="hub",
        model=spec.model,
        env={"HF_HOME": rules().share.cache_path},
        mount=_mount(SHARE, read_only=False),
        boot_source=FILES,
        doubts=(doubt,),
    )


def _baked(spec: DeploymentSpec) -> Weights:
    if not spec.image:
        raise InvalidArgument(
            "Weights that are baked into an image need the image.",
            fix="Give image=REGISTRY/NAME@sha256:…",
        )
    return Weights(kind="baked", model=spec.model, env=_OFFLINE, boot_source="baked")


def _folder(location: str) -> Weights:
    found = _FOLDER.fullmatch(location)
    if not found or {".", ".."} & set(found[2].split("/")):
        raise InvalidArgument(
            f"{location} is no folder of a file share.",
            fix="Give files://SHARE/FOLDER; what lies in a bucket or a blob container is copied to"
            " a share first, as Container Apps mount nothing else.",
        )
    mount = _mount(found[1], read_only=True)
    return Weights(
        kind="files",
        model=f"{mount.path}{found[2]}",
        env=_OFFLINE,
        mount=mount,
        boot_source=FILES,
    )


def _mount(share: str, *, read_only: bool) -> Mount:
    return Mount(
        share=share,
        link=link_of(share, read_only=read_only),
        path=rules().share.mount_path,
        read_only=read_only,
    )
