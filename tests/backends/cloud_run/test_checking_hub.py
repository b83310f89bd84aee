"""What the Hub says of a model, asked of a Hub on this machine."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.common.models import ask_hub
from tests.webserver import serving

KEY = SecretStr("hf_right")
STRANGER = SecretStr("hf_stranger")


async def check(request: Request) -> Response:
    """Answer as the Hub does: 401 without a token, 403 or 404 with one."""
    model, shown = request.path_params["model"], request.headers.get("authorization")
    if model == "open/model" or (shown == "Bearer hf_right" and model != "nobody/none"):
        return JSONResponse({})
    if model == "broken/hub":
        return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    gated = model == "gated/model"
    known, unknown = (HTTPStatus.FORBIDDEN, "GatedRepo"), (HTTPStatus.NOT_FOUND, "RepoNotFound")
    status, word = known if gated else unknown
    status = status if shown else HTTPStatus.UNAUTHORIZED
    return Response(status_code=status, headers={"X-Error-Code": word})


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    route = Route("/api/models/{model:path}/auth-check", check)
    with serving(Starlette(routes=[route])) as url:
        yield url


@pytest.mark.parametrize(
    ("model", "token", "passed", "words"),
    [
        ("open/model", None, True, ""),
        ("gated/model", KEY, True, "gated"),
        ("gated/model", None, False, "https://huggingface.co/gated/model"),
        ("gated/model", STRANGER, False, "gated"),
        ("nobody/none", None, False, "no model nobody/none"),
        ("nobody/none", KEY, False, "no model nobody/none"),
        ("broken/hub", STRANGER, None, ""),
        ("no such name", None, False, "no model"),
    ],
)
def test_the_hub_says_whether_a_model_can_be_fetched(
    hub: str, model: str, token: SecretStr | None, *, passed: bool | None, words: str
) -> None:
    """A licence that was not accepted is not called a missing model; no token is ever told."""
    verdict = ask_hub(model, token, hub)
    assert verdict.passed is passed
    assert words in f"{verdict.detail} {verdict.fix}"
    assert STRANGER.get_secret_value() not in repr(verdict)


def test_a_hub_that_is_not_there_leaves_it_unknown() -> None:
    assert ask_hub("open/model", None, "http://127.0.0.1:9").passed is None
