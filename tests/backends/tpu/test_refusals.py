"""What Google's words mean for a search; its statuses say one thing for several."""

import tomllib

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
from core.environment import ROOT
from core.errors import CloudUnavailable, OpsError
from tests.backends.tpu.orders import ZONE

_TOO_FAST = (
    "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of"
    " service 'compute.googleapis.com' for consumer 'project_number:1'."
)


def test_every_word_of_google_that_was_seen_is_a_search_s_own_error() -> None:
    """The lines are those by which the catalogue of failures is tested."""
    rows = tomllib.loads((ROOT / "tests/data/failures/tpu.toml").read_text("utf-8"))["seen"]
    known = {"ZONE_REFUSED", "NO_CAPACITY", "QUOTA_EXCEEDED", "NOT_OURS", "CLOUD_UNAVAILABLE"}
    seen = [(row["code"], row["line"]) for row in rows if row["code"] in known]
    assert {code for code, _line in seen} >= {"ZONE_REFUSED", "NO_CAPACITY", "QUOTA_EXCEEDED"}
    for code, line in seen:
        assert refusal_error(line, ZONE).code == code, line
        assert refusal_error(line, ZONE).cause == line


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
