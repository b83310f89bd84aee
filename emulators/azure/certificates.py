"""The authority that signs for this machine; kept, so that a restarted plane is still believed."""

from pathlib import Path
from typing import Final

import trustme

AUTHORITY: Final = "ca.pem"
_KEY: Final = "ca.key"
_OWN: Final = "plane.pem"


def certificate(folder: Path) -> Path:
    """Give the file with the key and certificate for 127.0.0.1 and localhost, signed anew."""
    authority = _authority(folder)
    own = folder / _OWN
    own.touch(mode=0o600)
    own.write_bytes(
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.bytes()
    )
    return own


def _authority(folder: Path) -> trustme.CA:
    shown, key = folder / AUTHORITY, folder / _KEY
    if key.exists():
        return trustme.CA.from_pem(shown.read_bytes(), key.read_bytes())
    made = trustme.CA()
    made.cert_pem.write_to_path(shown)
    key.touch(mode=0o600)
    key.write_bytes(made.private_key_pem.bytes())
    return made
