"""A service whose image was built with an Ollama model inside."""

import httpx2
import pytest
from google.cloud.devtools.cloudbuild_v1.types import Build, BuildStep
from google.cloud.run_v2.types import EnvVar

from tests.simulators.google.conftest import Google
from tests.simulators.google.run_services import Services, finished, parent_of, wanted

pytestmark = pytest.mark.anyio

_BUILDS = ("google.cloud.devtools.cloudbuild_v1", "cloud_build", "CloudBuildAsyncClient")
_RECIPE = """cat > Dockerfile <<'END'
FROM ollama/ollama:0.9.0
RUN ollama serve & sleep 5; ollama pull gemma3:1b && ollama cp gemma3:1b small
END
"""


async def test_a_baked_model_answers_by_both_of_its_names(
    google: Google, services: Services, http: httpx2.AsyncClient
) -> None:
    """The image comes from a build of the project; Ollama answers at `/`."""
    image = f"us-central1-docker.pkg.dev/{services.project}/vllm-devops/one:abc"
    docker = "gcr.io/cloud-builders/docker"
    build = Build(
        steps=[
            BuildStep(name=docker, script=_RECIPE),
            BuildStep(name=docker, args=["build", "--tag", image, "."]),
        ],
        images=[image],
        options={"logging": "CLOUD_LOGGING_ONLY"},
    )
    builds = google.client(*_BUILDS)
    asked = {"parent": parent_of(services.project), "project_id": services.project, "build": build}
    await finished(await builds.create_build(request=asked))
    service = wanted(services.project)
    container = service.template.containers[0]
    container.image, container.args = image, []
    container.env = [EnvVar(name="OLLAMA_HOST", value="0.0.0.0:8080")]
    container.ports[0].container_port = 8080
    container.startup_probe.http_get.path = "/"
    container.startup_probe.http_get.port = 8080
    url = (await services.created(service)).uri
    reply = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert [one["id"] for one in reply.json()["data"]] == ["gemma3:1b", "small"]
