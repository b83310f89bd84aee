"""Identity tokens of the simulated Google: RS256, signed by a key that is kept with the state."""

import time
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt
from google.auth.exceptions import GoogleAuthError

from core.record import Record

ISSUER: Final = "https://accounts.google.com"
GCLOUD_CLIENT: Final = "32555940559.apps.googleusercontent.com"
"""The audience of the ID token of a person's gcloud, which Cloud Run takes for every service: it is
how docs.cloud.google.com/run/docs/authenticating/developers (2026-11) calls a private one."""
HOUR_SECONDS: Final = 3600
"""How long Google's identity tokens live."""
_KEY_FILE: Final = "idtokens.pem"
_KEY_ID: Final = "rehearsal"


class Claims(Record):
    """What a token that holds says."""

    audience: str
    email: str
    expires_at: float
    """Epoch seconds."""


class InvalidToken(ValueError):
    """The token is not one of ours, has run out, or is meant for somebody else."""


class IdTokens:
    """Mints and verifies; a process that is started anew knows the tokens of the one before.

    The key is made for the first of them: few projects ask for any, and it takes a while.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _KEY_FILE

    @cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return _kept_key(self._file)

    @cached_property
    def _signer(self) -> crypt.RSASigner:
        signer: crypt.RSASigner = crypt.RSASigner.from_string(_private_pem(self._key), _KEY_ID)
        return signer

    def mint(self, audience: str, email: str, seconds: float = HOUR_SECONDS) -> str:
        """Give a token for `audience` that lives for `seconds`."""
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": audience,
            "sub": email,
            "azp": email,
            "email": email,
            "email_verified": True,
            "iat": now,
            "exp": now + int(seconds),
        }
        return str(jwt.encode(self._signer, claims).decode())

    def verify(self, token: str, audience: str) -> Claims:
        """Read a token that was minted here for `audience`; not a second too old.

        Raises:
            InvalidToken: It does not hold.
        """
        try:
            certificates = {_KEY_ID: _public_pem(self._key)}
            claims = jwt.decode(token, certs=certificates, audience=audience)
        except (ValueError, GoogleAuthError) as exc:
            raise InvalidToken(str(exc)) from exc
        return Claims(audience=audience, email=claims["email"], expires_at=claims["exp"])


def _kept_key(file: Path) -> rsa.RSAPrivateKey:
    if not file.exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        file.touch(mode=0o600)
        file.write_bytes(_private_pem(key))
    kept = serialization.load_pem_private_key(file.read_bytes(), password=None)
    assert isinstance(kept, rsa.RSAPrivateKey)
    return kept


def _private_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
