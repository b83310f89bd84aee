"""Everything that is written, told or kept of deployments on TPUs, to be searched for secrets."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from backends.google import secrets
from backends.google.clients import HF_SECRET
from core.errors import NotFound
from tests.backends.tpu.sites import opened
from tests.processes import command_lines
from tests.stories.conftest import Cloud
from tests.stories.test_cloud_run_secrets import HUB_TOKEN

KEY_SECRET: Final = "vllm-devops-tpu-one-api-key"
VM: Final = "vllm-devops-one"
_PACKED: Final = re.compile(r"[A-Za-z0-9+/=_-]{80,}")
"""What may be a text in base64, such as what the simulated cloud keeps of a node."""
_PEM_LINE: Final = re.compile(r"^[A-Za-z0-9+/=]{40,}$", re.MULTILINE)


class Leaks:
    """Collects secrets and, from the beginning on, every place where one could turn up."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.secrets: dict[str, set[str]] = {}
        """By kind: the engines' keys, the Hub's token, the lines of private keys."""
        self.places: dict[str, set[str]] = {}

    async def look(self) -> None:
        """Remember what is there now, behind the server's back."""
        for kind, values in (await self._known()).items():
            self.secrets.setdefault(kind, set()).update(values)
        self._add("the cloud", _unpacked(json.dumps(self._kept_by_the_cloud())))
        self._add("a command line", "\n".join(command_lines()))
        for path, text in _written(self._cloud.settings.vllm_devops_state_dir):
            self._add(path, text)

    def check(self, *, kinds: set[str]) -> None:
        """See that no place has any of them, and that there were some of each kind."""
        assert {kind for kind, values in self.secrets.items() if values} == kinds
        for where, texts in self.places.items():
            text = "\n".join(texts)
            for kind, values in self.secrets.items():
                assert not [one for one in values if one in text], (kind, where)
            assert "PRIVATE KEY" not in text, where

    def told(self, where: str, text: str) -> None:
        """Add what was said somewhere."""
        self._add(where, _unpacked(text))

    def _add(self, where: str, text: str) -> None:
        self.places.setdefault(where, set()).add(text)

    async def _known(self) -> dict[str, set[str]]:
        cloud, found = self._cloud, {"key": set[str](), "hub": set[str]()}
        async with opened(cloud.controls.plane, cloud.project) as site:
            for kind, name in (("key", KEY_SECRET), ("hub", HF_SECRET)):
                try:
                    found[kind].add((await secrets.read(site, name)).get_secret_value())
                except NotFound:  # before it is made, and after
                    continue
        assert found["hub"] <= {HUB_TOKEN}
        return {**found, "private key": set(_private_lines(_folder(cloud)))}

    def _kept_by_the_cloud(self) -> dict[str, Any]:
        """Labels, metadata, rules, logs, calls: all of the project but what is in its vault."""
        self._cloud.set()  # which writes it down
        file = _folder(self._cloud) / "projects" / f"{self._cloud.project}.json"
        kept: dict[str, Any] = json.loads(file.read_bytes())
        assert {"nodes", "queued_resources", "vms", "firewalls", "log", "calls"} <= set(kept)
        return {name: value for name, value in kept.items() if name != "secrets"}


def _folder(cloud: Cloud) -> Path:
    words = psutil.Process(cloud.controls.plane.pid).cmdline()
    return Path(words[words.index("--folder") + 1])


def _private_lines(folder: Path) -> Iterator[str]:
    """Give the lines of every private key that a VM has made for itself."""
    for file in (folder / "vms").rglob("key.pem"):
        yield from _PEM_LINE.findall(file.read_text(encoding="ascii"))


def _written(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Give every file of the server's; what simulates clouds keeps its own elsewhere or there."""
    assert folder
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(folder / "rehearsal" / "azure"):
            yield str(path), _unpacked(path.read_bytes().decode("latin-1"))


def _unpacked(text: str) -> str:
    """Add to a text what is packed in it, in base64, however often."""
    inner = (_decoded(one) for one in _PACKED.findall(text))
    return "\n".join([text, *(_unpacked(one) for one in inner if one)])


def _decoded(packed: str) -> str:
    try:
        return base64.b64decode(
            packed, altchars=b"-_" if set(packed) & {"-", "_"} else None
        ).decode("latin-1")
    except (binascii.Error, ValueError):
        return ""
