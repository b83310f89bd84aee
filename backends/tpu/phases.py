"""What a deployment waits for, by the names that everybody gives it."""

from collections.abc import Mapping
from typing import Final

SEARCHING: Final = "waiting for a chip"
RETURNING: Final = "giving a request back"
REPLACING: Final = "deleting the former"
REMOVING: Final = "deleting"
WAITS_IN: Final = frozenset({SEARCHING, RETURNING, REPLACING, REMOVING})
"""In these nothing goes on by itself: a call takes the next step."""
MAKING: Final = "making the VM"
STOPPING: Final = "waiting for its VM to stop"
GOING: Final = "waiting for its VM to be gone"

CERTIFICATE: Final = "certificate"
"""An entry of the script's whose message is a certificate, not words."""
READY: Final = "ready"
ENDED: Final = "ended"
FAILED: Final = "failed"
ENGINE: Final = "starting engine"
"""From here on the engine's own lines say how far it is."""
BOOTING: Final = "booting"
SCRIPT: Final[Mapping[str, str]] = {
    BOOTING: BOOTING,
    "installing docker": "installing docker",
    CERTIFICATE: BOOTING,
    "pulling image": "pulling image",
    "reading secrets": "reading secrets",
    ENGINE: "starting",
}
"""What the startup script calls what it does, and what it is as a phase of a boot."""
