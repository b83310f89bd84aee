"""Azure's clients without what nobody asks for."""

import json
import sys
from functools import cache
from typing import Final

import anyio

from core.environment import ROOT
from core.processes import run

_STORY: Final = """
import json, sys
import anyio
from fastmcp import Client
import server
from backends.aca.app import app_of
from tests.backends.aca.planned import CALLERS, VAULT, drawn, site

DRAWN = drawn()

def loaded():
    return [name for name, it in sys.modules.items() if getattr(it, "__file__", None)]

async def listed():
    async with Client(server.build(server.Settings())) as client:
        assert await client.list_tools()
    return loaded()

async def typed():
    app_of(DRAWN, vault_url=VAULT, addresses=CALLERS)
    return loaded()

async def called():
    there = site(azure_subscription_id="00000000-0000-0000-0000-000000000000")
    await there.clients.apps()
    await there.clients.secrets()
    await there.clients.aclose()
    return loaded()

def wholly():
    from azure.mgmt.appcontainers import ContainerAppsAPIClient, aio, models
    import azure.mgmt.appcontainers as whole
    named = {}
    exec("from azure.mgmt.appcontainers import *", named)
    same = named["ContainerAppsAPIClient"] is ContainerAppsAPIClient is whole.ContainerAppsAPIClient
    return same and models is whole.models and whole.__version__

print(json.dumps([*map(anyio.run, (listed, typed, called)), wholly()]))
"""


@cache
def _told() -> tuple[frozenset[str], frozenset[str], frozenset[str], str]:
    """Give what is loaded with tools listed, an app typed, a client opened; the whole's version."""
    done = anyio.run(lambda: run((sys.executable, "-c", _STORY), cwd=ROOT))
    assert done.returncode == 0, done.stderr
    *stages, version = json.loads(done.stdout)
    listed, typed, called = map(frozenset, stages)
    return listed, typed, called, version


def test_listing_the_tools_loads_nothing_of_azure() -> None:
    listed, *_ = _told()
    assert "tools.every" in listed
    assert not {"azure", "msal", "aiohttp"} & {name.split(".")[0] for name in listed}


def test_typing_an_app_loads_no_client() -> None:
    """A plan is made far more often than anything is asked of Azure."""
    _, typed, *_ = _told()
    assert "azure.mgmt.appcontainers.models" in typed
    assert "azure.mgmt.appcontainers.operations" not in typed
    assert not {"msal", "aiohttp"} & {name.split(".")[0] for name in typed}


def test_a_first_call_loads_no_sync_client() -> None:
    *_, called, _ = _told()
    assert "azure.mgmt.appcontainers.aio._client" in called
    assert not {"azure.mgmt.appcontainers", "azure.mgmt.appcontainers._client"} & called


def test_who_imports_an_opened_package_afterwards_gets_the_whole() -> None:
    *_, version = _told()
    assert version
