"""A deployment that exists, as commands and YAML for a person."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.cloud_run.service import blueprint, service_of
from core.errors import DeploymentNotFound, NotFound
from planner.model import read_model
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planned import E4B, spec
from tests.backends.cloud_run.planted import Planted, labels, planting

pytestmark = pytest.mark.anyio

_PINNED = "vllm/vllm-openai@sha256:" + "0" * 64


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def _plant(there: Planted, *, image: str = _PINNED, **said: Any) -> None:
    """Let a service run as it was planned, with the image that it was pinned to."""
    wanted = spec(**said)
    made = blueprint(there.site, wanted, read_model(wanted.model), hf_token=True)
    typed = service_of(made)
    typed.template.containers[0].image = image
    there.service(annotations=dict(typed.annotations), labels=labels(), template=typed.template)


async def test_it_is_written_as_it_runs(there: Planted) -> None:
    """With the image it was pinned to and the token it reads, not as it would be made today."""
    _plant(there, model=E4B, max_num_seqs=8)
    config = await server.config(there.site, "gemma")
    written = yaml.safe_load(config.yaml)
    (container,) = written["spec"]["template"]["spec"]["containers"]
    assert container["image"] == _PINNED
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= {env["name"] for env in container["env"]}
    assert written["spec"]["template"]["spec"]["containerConcurrency"] == 8
    assert config.yaml in config.command
    assert _PINNED in config.docker_run
    assert "secrets add-iam-policy-binding hf-token" in config.command


async def test_ollamas_image_is_built_first(there: Planted) -> None:
    """The commands make it from nothing, and there is no key to speak of."""
    _plant(there, model="gemma3:4b", engine="ollama", image="us-docker.pkg.dev/p/r/gemma:1")
    config = await server.config(there.site, "gemma")
    build, deploy = config.command.index("builds submit"), config.command.index("services replace")
    assert build < deploy
    assert "gcloud secrets" not in config.command
    assert not any("Secret Manager" in note for note in config.notes)


async def test_what_nobody_can_read_any_more_is_said(there: Planted) -> None:
    """Somebody took the annotation away; the service is still there to be read."""
    there.service(annotations={})
    with pytest.raises(NotFound) as caught:
        await server.config(there.site, "gemma")
    assert "gcloud run services describe" in caught.value.fix


async def test_nothing_of_that_name_has_no_text(there: Planted) -> None:
    """As for every other question about it."""
    with pytest.raises(DeploymentNotFound):
        await server.config(there.site, "nobody")
