"""What the planner knows of a run's model and accelerators, by the names that people give them."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmark.runs import Manifest
from core.errors import OpsError
from core.records import DeploymentSpec, ModelShape, valid
from planner.flags import Flags, resolve
from planner.model import is_path, read_model
from planner.places import Accelerator, accelerators, places

_MAKERS: Final = frozenset(
    {"nvidia", "google", "intel", "tpu", "gpu", "geforce", "gb", "tesla", "80", "count"}
)


class Known(NamedTuple):
    """A model, what it runs on, and its engine's flags."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags

    @property
    def sequences(self) -> int:
        """What --max-num-seqs is, vLLM's default where it was left out.

        Raises:
            InvalidArgument: A flag is none that vLLM takes.
        """
        return resolve(self.model, self.accelerator, self.flags).max_num_seqs


def known(manifest: Manifest) -> Known | None:
    """Give what the planner can reckon with, None where model or accelerator is strange to it."""
    owner = manifest.provenance
    deployed = str((owner.deployment_spec or {}).get("model", ""))
    return known_by(
        (manifest.subject.model, deployed),
        accelerator=owner.accelerator,
        target=owner.target,
        count=owner.accelerator_count,
        flags=flags_of(manifest),
    )


def known_by(
    models: Sequence[str],
    *,
    accelerator: str | None,
    target: str | None,
    count: int | None,
    flags: Flags,
) -> Known | None:
    """Do the same with what a person says; several accelerators work as one."""
    place = places().get(target or "")
    device = find_accelerator(accelerator or (place.accelerator if place else None))
    shape = next((found for name in models if (found := _shape(name))), None)
    if device is None or shape is None or device.bandwidth_gb_per_s is None:
        return None
    number = count or (place.count if place else 1)
    if flags.tensor_parallel_size == 1 and number > 1:
        flags = flags.model_copy(update={"tensor_parallel_size": number})
    return Known(shape, device, flags)


def find_accelerator(name: str | None) -> Accelerator | None:
    """Give the one whose own name is in what a person calls it.

    >>> find_accelerator("NVIDIA A100 80GB").name, find_accelerator("tpu-v6e").name
    ('a100-80', 'v6e')
    """
    if not name:
        return None
    wanted = _words(name)
    meant = [each for each in accelerators().values() if _words(each.name) <= wanted]
    return max(meant, key=lambda each: len(_words(each.name)), default=None)


def flags_of(manifest: Manifest) -> Flags:
    """Give the engine's flags as they were deployed, vLLM's defaults where nobody says."""
    said = manifest.provenance.deployment_spec
    if not said:
        return Flags(max_model_len=manifest.subject.max_model_len)
    try:
        return Flags.of(valid(DeploymentSpec, said))
    except OpsError:
        return Flags(max_model_len=manifest.subject.max_model_len)


def _shape(name: str) -> ModelShape | None:
    if not name or is_path(name):
        return None
    shape = read_model(name)
    return shape if shape.layers and shape.groups else None


def _words(name: str) -> frozenset[str]:
    split = re.sub(r"(?<=\d)(?=gb\b)", " ", name.lower())
    return frozenset(re.split(r"[^a-z0-9]+", split)) - _MAKERS - {""}
