"""A deployment that exists, as commands and YAML for a person."""

import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.aca import plan
from backends.aca.app import app_of, blueprint
from backends.aca.site import as_sent
from core.errors import NotFound
from planner.model import read_model
from tests.backends.aca.planned import CALLERS, E4B, PATCHED, VAULT, spec
from tests.backends.aca.planted import Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def _plant(there: Planted, *, token: bool = False, **said: Any) -> None:
    """Let an app run as it was planned, with the image that it was pinned to."""
    wanted = spec(**said)
    made = blueprint(there.site, wanted, read_model(wanted.model), hf_token=token)
    pinned = made.container.model_copy(update={"image": PATCHED})
    made = made.model_copy(update={"container": pinned})
    sent = as_sent(app_of(made, kept_at=VAULT, addresses=CALLERS))
    properties = sent["properties"]
    configuration, template = properties["configuration"], properties["template"]
    there.app(tags=sent["tags"], configuration=configuration, template=template)


async def test_it_is_written_as_it_runs(there: Planted) -> None:
    """With its image, its callers and the token it reads, not as it would be made today."""
    _plant(there, token=True, model=E4B, max_num_seqs=8)
    config = await plan.config(there.site, "gemma")
    written = yaml.safe_load(config.yaml)["properties"]
    container, _ = written["template"]["containers"]
    assert container["image"] == PATCHED
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= {env["name"] for env in container["env"]}
    (restriction,) = written["configuration"]["ingress"]["ipSecurityRestrictions"]
    assert restriction["ipAddressRange"] == CALLERS[0]
    (rule,) = written["template"]["scale"]["rules"]
    assert rule["http"]["metadata"]["concurrentRequests"] == "8"
    assert PATCHED in config.command
    assert PATCHED in config.docker_run
    assert any("--yaml app.yaml" in note for note in config.notes)
    words = shlex.split(config.docker_run)
    assert {"VLLM_API_KEY", "--entrypoint=vllm", "0.0.0.0"} <= {*words}  # noqa: S104
    assert "/mnt/weights:/weights" in words
    url = written["configuration"]["secrets"][0]["keyVaultUrl"]
    assert url.startswith(await there.site.clients.secrets_url())


async def test_a_token_that_is_not_read_is_not_written(there: Planted) -> None:
    """A reference to a secret that is not there would keep every replica from starting."""
    _plant(there)
    config = await plan.config(there.site, "gemma")
    assert "HF_TOKEN" not in config.yaml


async def test_what_nobody_can_read_any_more_is_said(there: Planted) -> None:
    """Somebody took the tags away; the app is still there to be read."""
    there.app(tags={"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-a100"})
    with pytest.raises(NotFound) as caught:
        await plan.config(there.site, "gemma")
    assert "az containerapp show" in caught.value.fix
