"""The simulated Cloud Build and Artifact Registry, asked by Google's own clients."""

from typing import Any

import anyio
import pytest
from google.api_core import exceptions

from backends.cloud_run import container
from core.records import DeploymentSpec
from tests.google_plane import Controls
from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio

_DOCKER = "gcr.io/cloud-builders/docker"
_RECIPE = {"name": _DOCKER, "script": "printf 'FROM ollama/ollama:0.12.3\\n' > Dockerfile"}


class Workshop:
    """Cloud Build, Artifact Registry and Logging of one project, which has a repository."""

    def __init__(self, google: Google, project: str) -> None:
        self.project = project
        self.place = f"projects/{project}/locations/us-central1"
        self.repository = f"{self.place}/repositories/vllm-devops"
        self.host = f"us-central1-docker.pkg.dev/{project}/vllm-devops"
        self.image = f"{self.host}/small:one"
        self.builds = google.client(
            "google.cloud.devtools.cloudbuild_v1", "cloud_build", "CloudBuildAsyncClient"
        )
        self.registry = google.client(
            "google.cloud.artifactregistry_v1", "artifact_registry", "ArtifactRegistryAsyncClient"
        )
        self.logging = google.client(
            "google.cloud.logging_v2", "logging_service_v2", "LoggingServiceV2AsyncClient"
        )

    def step(self, image: str = "", **changes: Any) -> dict[str, Any]:
        """The step that builds an image."""
        args = ["build", "--tag", image or self.image, "."]
        return {"id": "image", "name": _DOCKER, "args": args, **changes}

    async def begin(self, **changes: Any) -> Any:
        build = {
            "steps": [_RECIPE, self.step()],
            "images": [self.image],
            "tags": ["vllm-devops"],
            **changes,
        }
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


async def test_what_a_step_builds_is_pushed(workshop: Workshop) -> None:
    """The image is in the repository afterwards, with the build's digest."""
    operation = await workshop.begin()
    assert operation.metadata.build.status.name == "QUEUED"
    build = await operation.result(timeout=20)
    assert build.status.name == "SUCCESS"
    (image,) = await workshop.images()
    assert image.uri == f"{workshop.host}/small@{build.results.images[0].digest}"
    assert list(image.tags) == ["one"]
    assert (await workshop.registry.get_docker_image(name=image.name)).uri == image.uri


async def test_the_backends_own_recipe_for_ollama_is_built(workshop: Workshop) -> None:
    """Nothing in it is refused here."""
    spec = DeploymentSpec(name="small", model="gemma3:4b", engine="ollama")
    build = container.build_of(spec, project=workshop.project, region="us-central1")
    operation = await workshop.builds.create_build(
        request={"parent": workshop.place, "project_id": workshop.project, "build": build}
    )
    assert (await operation.result(timeout=20)).status.name == "SUCCESS"


async def _fails(workshop: Workshop, kind: str, words: str, **changes: Any) -> None:
    """Its end says what went wrong; nothing is pushed."""
    build = await workshop.ended(**changes)
    assert (build.status.name, build.failure_info.type_.name) == ("FAILURE", kind)
    assert words in build.failure_info.detail
    assert await workshop.images() == []


async def test_an_image_that_no_step_builds_cannot_be_pushed(workshop: Workshop) -> None:
    """It is looked for after the last step."""
    await _fails(workshop, "PUSH_IMAGE_NOT_FOUND", "failed to find", steps=[_RECIPE])


async def test_a_step_builds_nothing_without_a_dockerfile(workshop: Workshop) -> None:
    """Which an earlier step may have written."""
    await _fails(workshop, "USER_BUILD_STEP", "Dockerfile", steps=[workshop.step()])


async def test_a_base_image_has_to_be_there(workshop: Workshop) -> None:
    """It is pulled first."""
    recipe = {**_RECIPE, "script": "cat > Dockerfile <<'E'\nFROM ollama/none:1\nE"}
    steps = [recipe, workshop.step()]
    await _fails(workshop, "USER_BUILD_STEP", "manifest", steps=steps)


async def test_an_image_is_pushed_into_a_repository_that_is_there(workshop: Workshop) -> None:
    """Into no other."""
    image = workshop.image.replace("vllm-devops", "elsewhere")
    steps = [_RECIPE, workshop.step(image)]
    await _fails(workshop, "PUSH_FAILED", "Repository", images=[image], steps=steps)


async def test_a_secret_that_a_build_reads_has_to_be_there(workshop: Workshop) -> None:
    """It is read before the first step."""
    version = f"projects/{workshop.project}/secrets/none/versions/1"
    secrets = {"secret_manager": [{"version_name": version, "env": "TOKEN"}]}
    steps = [_RECIPE, workshop.step(secret_env=["TOKEN"])]
    await _fails(workshop, "USER_BUILD_STEP", "secret", available_secrets=secrets, steps=steps)


async def test_an_account_that_may_not_push_does_not(workshop: Workshop) -> None:
    """The deployments' own may only read."""
    email = f"vllm-devops-runtime@{workshop.project}.iam.gserviceaccount.com"
    account = f"projects/{workshop.project}/serviceAccounts/{email}"
    with pytest.raises(exceptions.InvalidArgument, match="logs_bucket"):
        await workshop.begin(service_account=account)
    options = {"logging": "CLOUD_LOGGING_ONLY"}
    changes = {"service_account": account, "options": options}
    await _fails(workshop, "PUSH_NOT_AUTHORIZED", "uploadArtifacts", **changes)


async def test_a_step_fails_where_the_controls_say_so(
    workshop: Workshop, controls: Controls
) -> None:
    """By its id."""
    fault = {"method": "cloudbuild.step/image", "message": "no space left on device"}
    controls.set(workshop.project, faults=[fault])
    await _fails(workshop, "USER_BUILD_STEP", "no space left")


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": []},
        {"timeout": {"seconds": 90_000}},
        {"options": {"disk_size_gb": 5000}},
        {"steps": [{"args": ["build"]}]},
        {"steps": [{**_RECIPE, "args": ["build"]}]},
        {"steps": [{"name": _DOCKER, "secret_env": ["TOKEN"]}]},
        {"steps": [{"name": _DOCKER, "args": ["build", "$MODEL"]}]},
        {"substitutions": {"MODEL": "x"}},
        {"substitutions": {"_UNUSED": "x"}},
        {"substitutions": {"_LONG": "x" * 4001}, "options": {"substitution_option": 1}},
        {"tags": ["not a tag"]},
    ],
)
async def test_a_build_that_cannot_be_is_refused_at_once(
    workshop: Workshop, changes: dict[str, Any]
) -> None:
    """Too long, too large, without a name, with a key that nothing explains."""
    with pytest.raises(exceptions.InvalidArgument):
        await workshop.begin(**changes)


async def test_keys_are_put_in_where_they_are_named(workshop: Workshop) -> None:
    """Its own and the built-in ones; two dollars are one."""
    build = await workshop.ended(
        substitutions={"_NAME": "small"},
        images=["$LOCATION-docker.pkg.dev/${PROJECT_ID}/vllm-devops/${_NAME}:one"],
        steps=[_RECIPE, workshop.step(env=["PRICE=$$5"])],
    )
    assert (build.status.name, list(build.images)) == ("SUCCESS", [workshop.image])
    assert list(build.steps[1].env) == ["PRICE=$5"]


async def test_builds_are_found_by_their_tags(workshop: Workshop) -> None:
    """The newest first; what is not understood is refused."""
    first = await workshop.ended(tags=["vllm-devops", "small"])
    second = await workshop.ended(tags=["vllm-devops", "other"])

    async def found(words: str) -> list[str]:
        request = {"parent": workshop.place, "project_id": workshop.project, "filter": words}
        return [one.id async for one in await workshop.builds.list_builds(request=request)]

    assert await found('tags="vllm-devops"') == [second.id, first.id]
    assert await found('tags="vllm-devops" AND tags="small"') == [first.id]
    assert await found('status="WORKING"') == []
    with pytest.raises(exceptions.InvalidArgument):
        await found('colour="red"')


async def test_a_build_can_be_cancelled_while_it_goes_on(
    workshop: Workshop, controls: Controls
) -> None:
    """It stays cancelled, and cannot be cancelled twice."""
    controls.set(workshop.project, boot_seconds=600)
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


async def test_a_build_that_takes_too_long_is_ended(workshop: Workshop, controls: Controls) -> None:
    """By its own timeout."""
    controls.set(workshop.project, boot_seconds=600)
    assert (await workshop.ended(timeout={"nanos": 10_000_000})).status.name == "TIMEOUT"


async def test_its_log_goes_to_cloud_logging(workshop: Workshop) -> None:
    """Under the build's id; none where that is asked for."""
    lines = await workshop.log((await workshop.ended()).id)
    assert lines[-1].text_payload == "DONE"
    quiet = await workshop.ended(options={"logging": "NONE"})
    assert await workshop.log(quiet.id) == []


async def test_a_package_is_deleted_with_its_images(workshop: Workshop) -> None:
    """Afterwards there is nothing to delete."""
    await workshop.ended()
    name = f"{workshop.repository}/packages/small"
    await (await workshop.registry.delete_package(name=name)).result(timeout=20)
    assert await workshop.images() == []
    with pytest.raises(exceptions.NotFound):
        await workshop.registry.delete_package(name=name)


async def test_there_is_one_repository_of_a_name(workshop: Workshop) -> None:
    """It is listed, and gone once it is deleted."""
    registry, name = workshop.registry, f"{workshop.place}/repositories/another"
    repository = {"format_": "DOCKER", "labels": {"managed-by": "vllm-devops-agent"}}
    request = {"parent": workshop.place, "repository_id": "another", "repository": repository}
    await (await registry.create_repository(request=request)).result(timeout=20)
    with pytest.raises(exceptions.AlreadyExists):
        await registry.create_repository(request=request)
    listed = await registry.list_repositories(parent=workshop.place)
    assert name in [one.name async for one in listed]
    await (await registry.delete_repository(name=name)).result(timeout=20)
    with pytest.raises(exceptions.NotFound):
        await registry.get_repository(name=name)
    with pytest.raises(exceptions.NotFound):
        await registry.list_docker_images(parent=name)
