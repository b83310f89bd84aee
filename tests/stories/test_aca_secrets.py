"""No secret of a deployment on Container Apps is said, written or kept where it does not belong."""

import base64
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from azure.mgmt.loganalytics.aio import LogAnalyticsManagementClient
from azure.mgmt.storage.aio import StorageManagementClient

from backends.aca.site import HF_SECRET, SCOPE, Site, key_secret
from core.settings import AzurePlane
from tests.backends.aca.deployed import app_of_name
from tests.backends.aca.sites import opened
from tests.conversation import agent_of
from tests.stories import test_cloud_run_secrets as elsewhere
from tests.stories.conftest import Azure
from tests.stories.troubles import ONE, trouble
from tests.tools.calls import OF_TPUS, OLD
from tools.surface import TOOLS

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

HUB_TOKEN: Final = elsewhere.HUB_TOKEN
ARM_TOKEN: Final = elsewhere.ID_TOKEN
"""Both are JSON Web Tokens."""
_USUAL: Final = str.maketrans("-_", "+/")
_PACKED: Final = re.compile(r"[A-Za-z0-9+/]{80,}")
"""What may be a text in base64, such as the SDK's token to go on with a change."""


CALLS: Final = {
    **elsewhere.calls_on(ONE["target"]),
    "list_bucket_models": {"target": ONE["target"]},
}
LIFE: Final = elsewhere.LIFE
"""After each part it is watched until it has settled."""


async def known(azure: Azure) -> tuple[dict[str, str], str]:
    """Look behind the server's back: every secret that there is, and the app as Azure shows it."""
    async with opened(azure.controls.plane, azure.subscription) as site:
        vault, app = await site.clients.secrets(), await app_of_name(site, "one")
        token = await (await site.clients.credential()).get_token(SCOPE)
        secrets = {
            "engine key": (await vault.get_secret(key_secret("one"))).value,
            "hub token": (await vault.get_secret(HF_SECRET)).value,
            "a token for Azure": token.token,
            **await _keys(site),
        }
        stands = await _stands(site)
    return {what: str(secret) for what, secret in secrets.items()}, f"{app.as_dict()}\n{stands}"


async def _keys(site: Site) -> dict[str, Any]:
    ground = site.ground
    accounts = (await site.clients.arm(StorageManagementClient)).storage_accounts
    workspaces = (await site.clients.arm(LogAnalyticsManagementClient)).shared_keys
    of_share = await accounts.list_keys(ground.resource_group, ground.storage_account)
    of_logs = await workspaces.get_shared_keys(ground.resource_group, ground.workspace)
    assert of_share.keys_property
    return {
        "account key": of_share.keys_property[0].value,
        "workspace key": of_logs.primary_shared_key,
    }


async def _stands(site: Site) -> str:
    """Give what the app stands on, as anybody who may look sees it."""
    apps, ground = await site.clients.apps(), site.ground
    found = await apps.managed_environments.get(ground.resource_group, ground.environment)
    links = await apps.managed_environments_storages.list(ground.resource_group, ground.environment)
    return f"{found.as_dict()}\n{links.as_dict()}"


async def test_no_secret_is_found_anywhere(
    trouble: Azure, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Answers, files, log lines, calls and the app itself, over a whole life with every tool.

    Some seconds: an engine is started twice and measured once.
    """
    caplog.set_level("DEBUG")
    secrets: dict[str, str] = {}
    written: dict[str, str] = {}
    logged, app = set[str](), ""
    async with agent_of(trouble.settings) as plain:
        agent = elsewhere.Listener(plain.client, ONE, CALLS)
        for part in LIFE:
            for tool in part:
                await agent.does(tool)
            await agent.settled("one", target=ONE["target"])
            if not secrets:
                secrets, app = await known(trouble)
            logged |= set(trouble.get()["log"])
            secrets |= _stream_tokens(trouble)
            written |= _written(trouble)
    _all_known(secrets, agent)
    places = {
        "an answer": "\n".join(agent.words),
        "the app": app,
        "its log": "\n".join(logged),
        "a call": "\n".join(trouble.get()["calls"]),
        "the server's log": "".join(capfd.readouterr()) + caplog.text,
        **written,
    }
    _clean(places, secrets)
    assert key_secret("one") in app


def _all_known(secrets: dict[str, str], agent: elsewhere.Listener) -> None:
    assert set(CALLS) == set(TOOLS) - set(OLD) == {*agent.answered, *_fails()}
    assert secrets["hub token"] == HUB_TOKEN
    assert any(what.startswith("stream") for what in secrets), secrets.keys()
    assert ARM_TOKEN.search(secrets["a token for Azure"])


def _clean(places: dict[str, str], secrets: dict[str, str]) -> None:
    assert any(name.endswith("journal.db") for name in places)
    assert any("/changes/" in name for name in places)
    for where, text in places.items():
        for what, secret in secrets.items():
            assert secret not in text, (what, where)
        assert not ARM_TOKEN.search(text), where


def _fails() -> set[str]:
    return {"list_vertex_models", "stop_benchmark", "compare_benchmarks", *OF_TPUS}


def _stream_tokens(azure: Azure) -> dict[str, str]:
    """Give what opened the streams of logs, which the simulated Azure remembers."""
    kept = json.loads(_folder(azure.controls.plane, azure.subscription).read_bytes())
    return {f"stream token {number}": token for number, token in enumerate(kept["tokens"])}


def _folder(plane: AzurePlane, subscription: str) -> Path:
    return Path(plane.ca).parent / "subscriptions" / f"{subscription}.json"


def _written(azure: Azure) -> dict[str, str]:
    """Every file of the server's, with what is packed in it; the cloud's own are elsewhere."""
    folder = azure.settings.vllm_devops_state_dir
    assert folder
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): _unpacked(path.read_bytes().decode("latin-1")) for path in files}


def _unpacked(text: str) -> str:
    """Add to a text what is packed in it, in base64, however often."""
    found = (one.rstrip("=") for one in _PACKED.findall(text.translate(_USUAL)))
    inner = [
        base64.b64decode(one + "=" * (-len(one) % 4)).decode("latin-1")
        for one in found
        if len(one) % 4 != 1
    ]
    return "\n".join([text, *map(_unpacked, inner)])
