"""How a simulated build ends, and what is in the registry then."""

from typing import Any

import anyio
import pytest
from google.api_core import exceptions

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google
from tests.simulators.google.run_services import keep_key

pytestmark = pytest.mark.anyio

_DOCKER = "gcr.io/cloud-builders/docker"
_RECIPE = {"name": _DOCKER, "script": "printf 'FROM ollama/ollama:0.12.3\\n' > Dockerfile"}
_NO_BASE = {"name": _DOCKER, "script": "cat > Dockerfile <<'E'\nFROM ollama/none:1\nE"}
_TOKEN = {"secret_manager": [{"version_name": "projects/p/secrets/none/versions/1", "env": "T"}]}


class Workshop:
    """Cloud Build, Artifact Registry and Logging of one project, which has a repository."""

    def __init__(self, google: Google, project: str) -> None:
        self.project = project
        self.place = f"projects/{project}/locations/us-central1"
        self.repository = f"{self.place}/repositories/vllm-devops"
        self.image = f"us-central1-docker.pkg.dev/{project}/vllm-devops/small:one"
        self.builds = google.client(
            "google.cloud.devtools.cloudbuild_v1", "cloud_build", "CloudBuildAsyncClient"
        )
        self.registry = google.client(
            "google.cloud.artifactregistry_v1", "artifact_registry", "ArtifactRegistryAsyncClient"
        )
        self.logging = google.client(
            "google.cloud.logging_v2", "logging_service_v2", "LoggingServiceV2AsyncClient"
        )
        self.projects = google.client(
            "google.cloud.resourcemanager_v3", "projects", "ProjectsAsyncClient"
        )

    def step(self, image: str = "", **changes: Any) -> dict[str, Any]:
        """The step that builds an image."""
        args = ["build", "--tag", image or self.image, "."]
        return {"id": "image", "name": _DOCKER, "args": args, **changes}

    def account(self, name: str = "builder") -> dict[str, Any]:
        email = f"vllm-devops-{name}@{self.project}.iam.gserviceaccount.com"
        account = f"projects/{self.project}/serviceAccounts/{email}"
        return {"service_account": account, "options": {"logging": "CLOUD_LOGGING_ONLY"}}

    async def begin(self, **changes: Any) -> Any:
        steps = [_RECIPE, self.step()]
        build = {"steps": steps, "images": [self.image], "tags": ["vllm-devops"], **changes}
        request = {"parent": self.place, "project_id": self.project, "build": build}
        return await self.builds.create_build(request=request)

    async def ended(self, **changes: Any) -> Any:
        """Begin a build and see it at its end."""
        operation = await self.begin(**changes)
        await operation.exception(timeout=20)
        build_id = operation.metadata.build.id
        return await self.builds.get_build(request={"project_id": self.project, "id": build_id})

    async def images(self) -> list[Any]:
        pager = await self.registry.list_docker_images(parent=self.repository)
        return [one async for one in pager]

    async def log(self, build_id: str) -> list[Any]:
        words = f'resource.type="build" AND resource.labels.build_id="{build_id}"'
        request = {"resource_names": [f"projects/{self.project}"], "filter": words}
        return [one async for one in await self.logging.list_log_entries(request=request)]


@pytest.fixture
def workshop(google: Google, project: str, controls: Controls) -> Workshop:
    """A build there takes no time."""
    controls.set(project, boot_seconds=0)
    return Workshop(google, project)


async def test_what_a_step_builds_is_pushed_until_its_package_is_deleted(
    workshop: Workshop,
) -> None:
    """With the build's digest, its log beside it; keys are put in where they are named."""
    build = await workshop.ended(
        **workshop.account(),
        substitutions={"_NAME": "small"},
        images=["$LOCATION-docker.pkg.dev/${PROJECT_ID}/vllm-devops/${_NAME}:one"],
        steps=[_RECIPE, workshop.step(env=["PRICE=$$5"])],
    )
    assert (build.status.name, list(build.steps[1].env)) == ("SUCCESS", ["PRICE=$5"])
    (image,) = await workshop.images()
    path = workshop.image.removesuffix(":one")
    assert (image.uri, list(image.tags)) == (f"{path}@{build.results.images[0].digest}", ["one"])
    assert (await workshop.registry.get_docker_image(name=image.name)).uri == image.uri
    assert (await workshop.log(build.id))[-1].text_payload == "DONE"
    name = f"{workshop.repository}/packages/small"
    await (await workshop.registry.delete_package(name=name)).result(timeout=20)
    assert await workshop.images() == []


@pytest.mark.parametrize(
    ("kind", "words", "changes"),
    [
        ("PUSH_IMAGE_NOT_FOUND", "failed to find", {"steps": [_RECIPE]}),
        ("USER_BUILD_STEP", "no such file", {"steps": [{**_RECIPE, "script": "true"}]}),
        ("USER_BUILD_STEP", "manifest", {"steps": [_NO_BASE]}),
        ("PUSH_FAILED", "Repository", {"image": "us-central1-docker.pkg.dev/{}/elsewhere/a:b"}),
        ("USER_BUILD_STEP", "secret", {"available_secrets": _TOKEN, "secret_env": ["T"]}),
        ("PUSH_NOT_AUTHORIZED", "uploadArtifacts", {"account": "runtime"}),
        ("USER_BUILD_STEP", "no space left", {"fault": "no space left on device"}),
    ],
)
async def test_a_build_that_fails_says_what_went_wrong(
    workshop: Workshop, controls: Controls, kind: str, words: str, changes: dict[str, Any]
) -> None:
    """Nothing is pushed."""
    more = dict(changes)
    image = more.pop("image", workshop.image).format(workshop.project)
    step = workshop.step(image, secret_env=more.pop("secret_env", []))
    first = more.pop("steps", [_RECIPE])
    steps = first if kind == "PUSH_IMAGE_NOT_FOUND" else [*first, step]
    account = workshop.account(more.pop("account")) if "account" in more else {}
    fault = {"method": "cloudbuild.step/image", "message": more.pop("fault", "")}
    controls.set(workshop.project, faults=[fault] if fault["message"] else [])
    build = await workshop.ended(**account, **more, images=[image], steps=steps)
    assert (build.status.name, build.failure_info.type_.name) == ("FAILURE", kind)
    assert words in build.failure_info.detail
    assert await workshop.images() == []


async def test_a_role_taken_from_the_builder_is_missed(workshop: Workshop) -> None:
    """That of the project to write the log, that of the repository to push."""
    for client, resource in (
        (workshop.projects, f"projects/{workshop.project}"),
        (workshop.registry, workshop.repository),
    ):
        await client.set_iam_policy(request={"resource": resource, "policy": {"bindings": []}})
        build = await workshop.ended(**workshop.account())
        assert await workshop.log(build.id) == []
    assert build.failure_info.type_.name == "PUSH_NOT_AUTHORIZED"


async def test_a_secret_that_nobody_granted_to_the_builder_is_not_read(
    google: Google, workshop: Workshop
) -> None:
    """It is there, and the build ends before its first step."""
    secrets = google.client(
        "google.cloud.secretmanager_v1",
        "secret_manager_service",
        "SecretManagerServiceAsyncClient",
    )
    await keep_key(secrets, workshop.project, readable=False)
    version = f"projects/{workshop.project}/secrets/key/versions/latest"
    more = {"available_secrets": {"secret_manager": [{"version_name": version, "env": "T"}]}}
    steps = [_RECIPE, workshop.step(secret_env=["T"])]
    build = await workshop.ended(**workshop.account(), **more, steps=steps)
    assert build.failure_info.type_.name == "USER_BUILD_STEP"
    assert "secretmanager.versions.access" in build.failure_info.detail


async def test_builds_are_found_by_their_tags(workshop: Workshop) -> None:
    """The newest first."""
    first = await workshop.ended(tags=["vllm-devops", "small"])
    second = await workshop.ended(tags=["vllm-devops", "other"])

    async def found(words: str) -> list[str]:
        request = {"parent": workshop.place, "project_id": workshop.project, "filter": words}
        return [one.id async for one in await workshop.builds.list_builds(request=request)]

    assert await found('tags="vllm-devops"') == [second.id, first.id]
    assert await found('tags="vllm-devops" AND tags="small"') == [first.id]
    assert await found('status="WORKING"') == []


async def test_a_build_is_ended_by_its_timeout_or_by_who_cancels_it(
    workshop: Workshop, controls: Controls
) -> None:
    """It stays so, and cannot be cancelled twice."""
    controls.set(workshop.project, boot_seconds=600)
    assert (await workshop.ended(timeout={"nanos": 10_000_000})).status.name == "TIMEOUT"
    operation = await workshop.begin()
    named = {"project_id": workshop.project, "id": operation.metadata.build.id}
    assert (await workshop.builds.cancel_build(request=named)).status.name == "CANCELLED"
    assert await operation.exception(timeout=20) is not None
    with pytest.raises(exceptions.FailedPrecondition):
        await workshop.builds.cancel_build(request=named)


async def test_a_build_that_was_left_goes_on_in_the_next_process(
    google_with_a_past: Google,
) -> None:
    """It comes to its end there."""
    builds = Workshop(google_with_a_past, "p-building").builds
    named = {"project_id": "p-building", "id": "left"}
    with anyio.fail_after(20):
        while not (build := await builds.get_build(request=named)).finish_time:
            pass
    assert build.status.name == "SUCCESS"
