"""Who asks, as their token says it."""

import base64
import json

from core.errors import OpsError


def object_id(token: str) -> str:
    """Read who a token was given to; it is not verified, for it is shown to Azure alone.

    Raises:
        OpsError: It is none of Azure's.
    """
    try:
        _head, claims, _signature = token.split(".")
        padded = claims + "=" * (-len(claims) % 4)
        return str(json.loads(base64.urlsafe_b64decode(padded))["oid"])
    except (ValueError, TypeError, KeyError) as exc:
        raise OpsError(
            "Azure's token does not say who asks.", fix="Log in with `az login`."
        ) from exc
