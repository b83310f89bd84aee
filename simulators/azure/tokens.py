"""Tokens of the simulated login, and the authority that signs certificates."""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trustme

from core.records import Record
from simulators.azure.errors import Refused
from simulators.azure.state import Subscription, World

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


ARM: Final = "https://management.azure.com"
_KEY_FILE: Final = "tokens.key"


class Claims(Record):
    """What a token that holds says."""

    subscription: str
    object_id: str
    audience: str
    name: str


def kept_key(folder: Path) -> bytes:
    """Give the key that tokens are signed with; the first time, make it."""
    file = folder / _KEY_FILE
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(32))
    return file.read_bytes()


def issued(world: World, sub: Subscription, scopes: list[str]) -> tuple[str, int]:
    """Give a token for the caller, and until when it is valid (epoch seconds)."""
    ends = int(time.time() + sub.knobs.token_seconds)
    claims = {
        "aud": scopes[0].removesuffix("/.default") if scopes else ARM,
        "exp": ends,
        "oid": sub.caller,
        "sub": sub.caller,
        "tid": sub.tenant,
        "name": sub.caller_name,
        "rehearsed_subscription": sub.id,
    }
    signed = f"{_packed({'alg': 'HS256', 'typ': 'JWT'})}.{_packed(claims)}"
    return f"{signed}.{_signature(world, signed)}", ends


def caller_of(world: World, headers: Mapping[str, str], *audiences: str) -> Claims:
    """Read whoever asks; an audience is the beginning of what the token must be meant for.

    Raises:
        Refused: There is no token, it is none of ours, it has run out or is for something else.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise unauthenticated(
            "AuthenticationFailed",
            "Authentication failed. The 'Authorization' header is missing.",
        )
    claims = _verified(world, token)
    if claims["exp"] <= time.time():
        raise _expired(claims["exp"])
    if audiences and not str(claims["aud"]).startswith(audiences):
        raise unauthenticated(
            "InvalidAuthenticationTokenAudience",
            "The access token has been obtained for wrong audience or resource"
            f" '{claims['aud']}'. It should exactly match with one of the allowed audiences"
            f" {', '.join(repr(one) for one in audiences)}.",
        )
    return Claims(
        subscription=claims["rehearsed_subscription"],
        object_id=claims["oid"],
        audience=claims["aud"],
        name=claims["name"],
    )


def _expired(at: float) -> Refused:
    ended, now = (
        datetime.fromtimestamp(one, UTC).strftime("%m/%d/%Y %I:%M:%S %p")
        for one in (at, time.time())
    )
    return unauthenticated(
        "ExpiredAuthenticationToken",
        f"The access token expiry UTC time '{ended}' is earlier than current UTC time '{now}'.",
    )


def unauthenticated(code: str, message: str) -> Refused:
    """Nobody knows who asks."""
    challenge = (
        'Bearer authorization_uri="https://login.microsoftonline.com/", error="invalid_token"'
    )
    return Refused(401, code, message, headers={"WWW-Authenticate": challenge})


def login_refusal(sub: Subscription) -> tuple[str, str] | None:
    """Give the error and its description, of a login that gives no token."""
    if sub.knobs.login == "none":
        return "login_required", "Please run 'az login' to set up an account."
    if sub.knobs.login == "expired":
        return (
            "invalid_grant",
            "AADSTS700082: The refresh token has expired due to inactivity. Please run 'az login'.",
        )
    return None


def _verified(world: World, token: str) -> dict[str, Any]:
    signed, _, signature = token.rpartition(".")
    if hmac.compare_digest(_signature(world, signed), signature):
        try:
            claims: dict[str, Any] = json.loads(_unpacked(signed.partition(".")[2]))
        except (ValueError, binascii.Error):
            claims = {}
        if claims:
            return claims
    raise unauthenticated("InvalidAuthenticationToken", "The access token is invalid.")


def _signature(world: World, signed: str) -> str:
    return _bare(hmac.digest(world.key, signed.encode(), hashlib.sha256))


def _packed(value: dict[str, Any]) -> str:
    return _bare(json.dumps(value, separators=(",", ":")).encode())


def _bare(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def _unpacked(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
