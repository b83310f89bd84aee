"""A provider that is not registered stays so until a person agrees; the SDK would register it."""

import logging
from typing import Any, Final

from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import SansIOHTTPPolicy

from core.cloud_errors import ApiDisabled

_UNASKED: Final = "/register?api-version=2016-02-01"
"""How the SDK's own registration ends; ours is asked for with a newer version."""


class NoRegistration(SansIOHTTPPolicy[Any, Any]):
    """Refuses the call by which the SDK answers Azure's "not registered", before it is sent.

    It would change a subscription that is only looked at, and then wait without an end.
    """

    def __init__(self) -> None:
        # It announces what is refused here.
        logging.getLogger("azure.mgmt.core.policies").setLevel(logging.ERROR)

    def on_request(self, request: PipelineRequest[Any]) -> None:
        """Let everything pass but that.

        Raises:
            ApiDisabled: It was about to be registered.
        """
        url = request.http_request.url
        if request.http_request.method == "POST" and url.endswith(_UNASKED):
            provider = url.removesuffix(_UNASKED).rsplit("/", 1)[-1]
            raise ApiDisabled(
                f"The subscription has not registered {provider}.",
                fix="Call setup_target (make setup), which makes what the target needs.",
            )
