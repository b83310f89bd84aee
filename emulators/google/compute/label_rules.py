"""What labels and metadata may be, and the fingerprints that they are changed by."""

import base64
import hashlib
import json
import re
from typing import Any, Final

from emulators.google.compute.refusing import Denied, wrong

_KEY: Final = re.compile(r"[^\W\dA-Z_](?:[^\WA-Z]|-){0,62}")
_VALUE: Final = re.compile(r"(?:[^\WA-Z]|-){0,63}")
_MOST_LABELS: Final = 64
_METADATA_KEY: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MOST_VALUE_BYTES: Final = 262_144
_MOST_METADATA_BYTES: Final = 524_288
"""Source: discovery document compute.v1 on Metadata: 512 KB in all, 256 KB each."""
_CHARACTERS: Final = (
    "can only contain lowercase letters, numeric characters, underscores and dashes."
    " International characters are allowed."
)


def fingerprint(held: Any) -> str:
    """Give what names exactly these labels, this metadata, these tags."""
    said = json.dumps(held, sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(said).digest()[:8]).decode()


def check_labels(labels: dict[str, str]) -> None:
    """Refuse labels that may not be.

    Raises:
        Denied: A key or a value is no label's, or there are too many.
    """
    if len(labels) > _MOST_LABELS:
        raise wrong("resource.labels", len(labels), f"At most {_MOST_LABELS} labels are possible.")
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            words = f"Label key '{key}' violates format constraints. The key must start with a"
            raise wrong("resource.labels", "", f"{words} lowercase character, {_CHARACTERS}")
        if not _VALUE.fullmatch(value):
            words = f"Label value '{value}' violates format constraints. The value"
            raise wrong("resource.labels", "", f"{words} {_CHARACTERS}")


def check_metadata(items: list[dict[str, str]]) -> None:
    """Refuse metadata that may not be.

    Raises:
        Denied: A key is no key or there twice, or there is too much.
    """
    field, total = "resource.metadata", 0
    seen: set[str] = set()
    for number, item in enumerate(items):
        key, value = item.get("key", ""), item.get("value", "")
        if not _METADATA_KEY.fullmatch(key):
            raise wrong(
                f"{field}.items[{number}].key", key, "Must be a match of '[a-zA-Z0-9-_]{1,128}'"
            )
        if key in seen:
            raise wrong(field, key, "Metadata has duplicate key.")
        size = len(value.encode())
        if size > _MOST_VALUE_BYTES:
            words = f"Value of key is too large: maximum size {_MOST_VALUE_BYTES} bytes."
            raise wrong(f"{field}.items[{number}].value", f"{key}", words)
        total += len(key) + size
        seen.add(key)
    if total > _MOST_METADATA_BYTES:
        raise wrong(field, "", f"Metadata is too large: maximum {_MOST_METADATA_BYTES} bytes.")


def stale(what: str) -> Denied:
    """Say that a fingerprint is not of what is there now."""
    return Denied(412, "conditionNotMet", f"Supplied fingerprint does not match current {what}.")
