"""What Google's words mean for a search; its statuses say one thing for several."""

import pytest
from google.api_core.exceptions import (
    BadRequest,
    Forbidden,
    GoogleAPICallError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServiceUnavailable,
    TooManyRequests,
)

from backends.google.errors import strictly
from backends.tpu.site import meaning, refusal_error, translated_refusal
from core.errors import CloudUnavailable, OpsError
from tests.backends.tpu.orders import ZONE

_BAD = "Cloud TPU received a bad request. "
_TOO_FAST = (
    "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of"
    " service 'compute.googleapis.com' for consumer 'project_number:1'."
)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            f'{_BAD}The requested zone "asia-northeast1-a" is not supported. [EID: 0x1]',
            "ZONE_REFUSED",
        ),
        (
            (
                f'{_BAD}The requested accelerator configuration for accelerator type, "v6e-4",'
                " could"
                ' not be found in the zonal accelerator configurations for "asia-east1-a".; the'
                " accelerator"
                " v6e-4 was not found in zone asia-east1-a [EID: 0x1]"
            ),
            "ZONE_REFUSED",
        ),
        ("Location us-east1-d is not found or access is unauthorized.", "ZONE_REFUSED"),
        (
            (
                'FLEX_START provisioning model is not supported for accelerator type "v6e-4" in'
                ' location "asia-east1-c"'
            ),
            "ZONE_REFUSED",
        ),
        (
            "This user agent is not allowed to use the machine type [ct5lp-hightpu-1t].",
            "ZONE_REFUSED",
        ),
        (
            (
                "Invalid value for field 'resource.machineType':"
                " 'zones/z/machineTypes/ct6e-standard-1t'"
                ". The referenced resource does not exist."
            ),
            "ZONE_REFUSED",
        ),
        ("The resource 'projects/p/zones/mars-a' was not found", "ZONE_REFUSED"),
        (
            (
                "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded."
                " Limit:"
                " 0 in region us-east5."
            ),
            "QUOTA_EXCEEDED",
        ),
        (
            "Quota 'TPUV6EPerProjectPerZoneForTPUAPI' exhausted. Limit 32 in zone europe-west4-a",
            "QUOTA_EXCEEDED",
        ),
        (
            "QUOTA_EXCEEDED: Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region us-east5.",
            "QUOTA_EXCEEDED",
        ),
        (
            (
                'There is no more capacity in the zone "us-east5-b"; you can try in another zone'
                " where"
                " Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)"
            ),
            "NO_CAPACITY",
        ),
        (
            "Insufficient reserved capacity. Contact customer support to increase it.",
            "NO_CAPACITY",
        ),
        (
            (
                "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone 'projects/p/zones/z' does not"
                " have"
                " enough resources available to fulfill the request."
            ),
            "NO_CAPACITY",
        ),
        ("already_exists: node 'x' already exists", "NOT_OURS"),
        (
            "STANDARD provisioning model is incompatible with spot requests",
            "PROVISIONING_MODEL_CONFLICT",
        ),
        ("RESOURCE_OPERATION_RATE_EXCEEDED: Operation rate exceeded.", "CLOUD_UNAVAILABLE"),
        (
            (
                "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of"
                " service"
                " 'compute.googleapis.com'"
            ),
            "CLOUD_UNAVAILABLE",
        ),
        ("RESOURCE_NOT_READY: The resource 'x' is not ready", "CONCURRENT_CHANGE"),
        ("Invalid value for field 'resource.name': 'X'.", None),
        ("The referenced network resource cannot be found.", None),
        ("", None),
    ],
)
def test_googles_words_are_understood(words: str, code: str | None) -> None:
    """Word by word as they were reported."""
    assert meaning(words) == code
    told = "ZONE_REFUSED" if code == "PROVISIONING_MODEL_CONFLICT" else code
    assert refusal_error(words, ZONE).code == (told or "CLOUD_REFUSED")
    assert refusal_error(words, ZONE).cause == words


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ResourceExhausted("There is no more capacity in the zone"), "NO_CAPACITY"),
        (ResourceExhausted("Quota limit 'A' has been exceeded."), "QUOTA_EXCEEDED"),
        (InvalidArgument('The requested zone "z" is not supported.'), "ZONE_REFUSED"),
        (InvalidArgument("valid_until_duration must be positive."), "CLOUD_REFUSED"),
        (PermissionDenied("Location z is not found or access is unauthorized."), "ZONE_REFUSED"),
        (PermissionDenied("Permission 'tpu.nodes.create' denied."), "PERMISSION_DENIED"),
        (ServiceUnavailable("The zone does not have enough resources available"), "NO_CAPACITY"),
        (ServiceUnavailable("Try again."), "CLOUD_UNAVAILABLE"),
        (TooManyRequests("POST http://x/y: Rate Limit Exceeded"), "CLOUD_UNAVAILABLE"),
        (Forbidden(f"POST http://x/y: {_TOO_FAST}"), "CLOUD_UNAVAILABLE"),
        (
            BadRequest("POST http://x/y: Invalid value for field 'resource.name': 'X'."),
            "CLOUD_REFUSED",
        ),
        (NotFound("The resource 'projects/p/zones/z' was not found"), "ZONE_REFUSED"),
        (NotFound("The resource 'projects/p/global/images/i' was not found"), "CLOUD_REFUSED"),
    ],
)
def test_a_refused_call_is_classed_by_its_words_then_by_its_status(
    raised: GoogleAPICallError, error: str
) -> None:
    with pytest.raises(OpsError) as caught, translated_refusal("ask for a chip", ZONE):
        raise raised
    assert caught.value.code == error
    assert "http://x" not in caught.value.cause
    assert caught.value.fix


@pytest.mark.parametrize(
    "raised",
    [
        Forbidden(f"GET http://x/y: {_TOO_FAST}"),
        TooManyRequests(_TOO_FAST),
        ResourceExhausted(_TOO_FAST),
        Forbidden("GET http://x/y: Rate Limit Exceeded"),
    ],
)
def test_too_many_calls_in_a_minute_are_no_refusal(raised: GoogleAPICallError) -> None:
    """Compute Engine says 403 of them: a search that took it for one would end for good."""
    with pytest.raises(CloudUnavailable) as caught, strictly("look"):
        raise raised
    assert caught.value.retryable


def test_what_is_no_refusal_of_a_zone_is_none_here() -> None:
    """The catalogue knows more of a TPU than why a zone does not give it."""
    assert meaning("failed: x:1 cannot be pulled: manifest unknown") is None
