"""What a control plane makes a VM with."""

from typing import NamedTuple


class VmSpec(NamedTuple):
    """One VM that is to be."""

    plane: str
    """queued or compute."""
    zone: str
    id: str
    """Of the node or the instance."""
    accelerator: str
    """Such as v6e-4."""
    metadata: dict[str, str]
    """With the startup-script."""
    labels: dict[str, str]
    tags: tuple[str, ...]
    network: str
    """Its name."""
    service_account: str
    scopes: tuple[str, ...]
    external: bool
    """Whether it gets an address of its own."""
    disk_gb: int
    has_docker: bool
    """The image brings it along."""

    @property
    def key(self) -> str:
        """Where it is found in `World.live`, below its project."""
        return f"{self.plane}/{self.zone}/{self.id}"
