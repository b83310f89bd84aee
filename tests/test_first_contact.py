"""`make first-contact`: what a real cloud proves, here held against a simulated one."""

import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from fastmcp import Client, FastMCP

import first_contact
from core.environment import ROOT
from core.processes import Output, run
from core.settings import Settings
from demo import Story
from first_contact import ITEMS, Contact

_LONGEST_SECONDS: Final = 400


async def _try(folder: Path, *arguments: str) -> Output:
    program = (sys.executable, str(ROOT / "first_contact.py"), *arguments)
    env = {"VLLM_DEVOPS_STATE_DIR": str(folder), "REHEARSAL": "1"}
    return await run(program, cwd=ROOT, env=env, timeout=_LONGEST_SECONDS)


async def _clean(folder: Path) -> None:
    program = (sys.executable, str(ROOT / "rehearse.py"), "clean")
    await run(program, cwd=ROOT, env={"VLLM_DEVOPS_STATE_DIR": str(folder)}, timeout=60)


def _report(folder: Path) -> str:
    (file,) = folder.glob("rehearsal/first-contact-*.md")
    return file.read_text(encoding="utf-8")


@pytest.mark.anyio
@pytest.mark.life
@pytest.mark.parametrize("target", ["cloud-run-l4", "aca-a100", "tpu-v6e-1"])
async def test_each_cloud_is_tried_from_looking_to_removal(target: str, tmp_path: Path) -> None:
    """Twelve things, each with an outcome, in a report that names nobody."""
    done = await _try(tmp_path, target, "yes")
    await _clean(tmp_path)
    text = _report(tmp_path)
    rows = re.findall(r"^\| \d+ \| .* \| \*\*(pass|fail|not known)\*\* \|", text, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-6000:]
    assert len(rows) == 12
    assert rows.count("pass") >= 9, text
    assert "00000000-0000-4000-8000-000000000000" not in text


@pytest.mark.anyio
@pytest.mark.life
async def test_nothing_is_made_where_nobody_agrees(tmp_path: Path) -> None:
    """It looks, says so, and deploys nothing."""
    done = await _try(tmp_path, "aca-a100")
    await _clean(tmp_path)
    assert "no: nobody is there to agree; YES=1 agrees beforehand" in done.stdout
    assert not re.search(r"▶ (setup_target|deploy_vllm|destroy_vllm)\(", done.stdout)
    assert "It was not deployed." in done.stdout


@pytest.mark.anyio
async def test_only_clouds_are_tried(tmp_path: Path) -> None:
    """This machine proves nothing about them."""
    done = await _try(tmp_path, "local")
    assert done.returncode == 2
    assert "make first-contact TARGET=cloud-run-" in done.stderr


@pytest.mark.parametrize("kind", ITEMS)
def test_each_cloud_has_twelve_things_to_prove(kind: str) -> None:
    assert len(ITEMS[kind]) == 12


@pytest.mark.parametrize(
    ("door", "outcome"),
    [
        ({"POST /invocations": 200, "GET /v1/models": 401}, "fail"),
        ({"POST /invocations": 404, "GET /v1/models": 401}, "pass"),
        ({"POST /invocations": "ConnectError"}, "not known"),
        ({}, "not known"),
    ],
)
def test_an_open_door_is_a_failure(door: dict[str, Any], outcome: str) -> None:
    """One that could not be reached proves nothing."""
    contact = Contact(Client(FastMCP("nobody")), "aca-a100", is_rehearsal=True)
    contact.door.update(door)
    assert first_contact.shut(contact)[0] == outcome


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(80.0, "pass"), (900.0, "pass"), (2000.0, "fail"), (None, "not known")]
)
def test_a_boot_is_judged_by_its_plan(seconds: float | None, outcome: str) -> None:
    contact = Contact(Client(FastMCP("nobody")), "aca-a100", is_rehearsal=True)
    contact.answers["plan_deployment"] = {"data": {"foreseen": {"boot_seconds": "274 (77-776)"}}}
    contact.boot_seconds = seconds
    assert first_contact.booted(contact)[0] == outcome


@pytest.mark.anyio
async def test_a_call_that_fails_is_counted() -> None:
    """The demo and the rehearsals end with its number."""
    server = FastMCP("somebody")

    @server.tool
    def refuses() -> dict[str, bool]:
        return {"ok": False}

    async with Client(server) as client:
        story = Story(client)
        await story.call("refuses")
    assert (story.calls, story.failed) == (1, 1)


def test_a_report_names_nobody() -> None:
    """Neither project nor subscription, host, address, person or secret."""
    settings = Settings(google_cloud_project="my-project", _env_file=None)
    text = (
        "my-project (projects/123456789) of me@example.org at 203.0.113.9:"
        " https://one-abc-uc.a.run.app, 01234567-89ab-cdef-0123-456789abcdef,"
        " sk-0123456789abcdefghij"
    )
    told = first_contact.anonymous(text, settings)
    assert told == (
        "<project> (projects/<number>) of <person> at <address>: https://<host>, <id>, [redacted]"
    )
