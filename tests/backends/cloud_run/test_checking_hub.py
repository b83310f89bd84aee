"""What the Hub says of a model, asked of a Hub on this machine."""

import dataclasses
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.cloud_run.site import Site
from backends.common import models
from backends.common.models import ask_hub
from backends.common.preflight import ask_one
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.planned import spec
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


def test_a_public_model_passes_without_a_token(hub: str) -> None:
    assert ask_hub("open/model", None, hub).passed


def test_a_gated_model_passes_for_whom_it_lets_in(hub: str) -> None:
    verdict = ask_hub("gated/model", KEY, hub)
    assert verdict.passed
    assert "gated" in verdict.detail


def test_a_gated_model_fails_without_a_token_and_says_where_its_licence_is(hub: str) -> None:
    verdict = ask_hub("gated/model", None, hub)
    assert verdict.passed is False
    assert "gated" in verdict.detail
    assert "https://huggingface.co/gated/model" in verdict.fix


def test_a_gated_model_whose_licence_was_not_accepted_is_not_called_missing(hub: str) -> None:
    verdict = ask_hub("gated/model", STRANGER, hub)
    assert verdict.passed is False
    assert "gated" in verdict.detail


def test_a_model_that_does_not_exist_fails(hub: str) -> None:
    for token in (None, KEY):
        verdict = ask_hub("nobody/none", token, hub)
        assert verdict.passed is False
        assert "no model nobody/none" in verdict.detail


def test_a_hub_that_fails_leaves_it_unknown(hub: str) -> None:
    assert ask_hub("broken/hub", None, hub).passed is None


def test_a_hub_that_is_not_there_leaves_it_unknown() -> None:
    assert ask_hub("open/model", None, "http://127.0.0.1:9").passed is None


def test_a_name_that_no_model_can_have_is_not_a_pass(hub: str) -> None:
    assert ask_hub("no such name", None, hub).passed is not True


def in_the_real_world(site: Site) -> Site:
    """As it would be outside a rehearsal."""
    settings = site.settings.model_copy(update={"rehearsal": False})
    return dataclasses.replace(site, settings=settings)


@pytest.mark.anyio
@pytest.mark.parametrize(("model", "outcome"), [("open/model", "pass"), ("gated/model", "fail")])
async def test_a_preflight_outside_a_rehearsal_asks_the_hub(
    hub: str, monkeypatch: pytest.MonkeyPatch, model: str, outcome: str
) -> None:
    monkeypatch.setattr(models, "ask_hub", lambda model, token: ask_hub(model, token, hub))
    site = in_the_real_world(offline())
    (question,) = models.hub_questions(site.settings, spec(model))
    row = await ask_one(question)
    assert (row.what, row.outcome) == (f"{model} can be fetched from the Hub", outcome)


@pytest.mark.anyio
async def test_a_hub_that_takes_too_long_leaves_it_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(models, "_SECONDS", 0.05)
    monkeypatch.setattr(models, "ask_hub", lambda _model, _token: over.wait(10))
    site = in_the_real_world(offline())
    (question,) = models.hub_questions(site.settings, spec("open/model"))
    row = await ask_one(question)
    over.set()
    assert row.outcome == "unknown"
    assert "did not answer" in row.detail


def test_a_token_is_never_told(hub: str) -> None:
    said = [ask_hub(model, STRANGER, hub) for model in ("gated/model", "nobody/none", "broken/hub")]
    assert STRANGER.get_secret_value() not in repr(said)
