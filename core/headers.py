"""Where a request carries its two credentials."""

from typing import Final

KEY_HEADER: Final = "Authorization"
"""The engine's own key."""
IDENTITY_HEADER: Final = "X-Serverless-Authorization"
"""Who asks. Cloud Run looks at this one first and hands the other on to the container
(cloud.google.com/run/docs/authenticating/service-to-service, 2026-11-20)."""
