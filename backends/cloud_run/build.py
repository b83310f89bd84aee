"""Images that hold Ollama's model: built by Cloud Build, kept by Artifact Registry."""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from google.api_core.exceptions import NotFound
from google.cloud.artifactregistry_v1 import DockerImage
from google.cloud.devtools import cloudbuild_v1
from google.cloud.devtools.cloudbuild_v1 import Build, ListBuildsRequest

from backends.cloud_run.container import Container, Serving, place_for, rules
from backends.cloud_run.site import Site
from backends.container import as_yaml
from backends.google.clients import BUILDER_ID, IMAGE_GB_USD, REPOSITORY, account_of, as_sent, when
from backends.google.errors import reading, strictly, translated, writing
from backends.lifecycle import Resource, Status
from core.errors import CloudRefused, InvalidArgument, PermissionDenied
from core.records import DeploymentSpec, Target

T = TypeVar("T")
BUILDING: Final = "building image"
PORT: Final = 8080
_TAG: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?:[A-Za-z0-9][A-Za-z0-9._-]*")
_ONLY_VLLM: Final = (
    "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes", "max_num_batched_tokens",
    "quantization", "dtype", "cpu_offload_gb", "enforce_eager", "engine_args",
    "compile_cache",
)  # fmt: skip


def ollama_serving(target: Target, spec: DeploymentSpec, *, project: str, region: str) -> Serving:
    _refuse(spec)
    place, chosen, gb = place_for(target, spec, "baked"), rules().ollama, _gb(spec)
    requests = spec.max_num_seqs or chosen.parallel
    length = {"OLLAMA_CONTEXT_LENGTH": str(spec.max_model_len)} if spec.max_model_len else {}
    return Serving(
        container=Container(
            image=image_of(spec, project=project, region=region),
            command=("ollama",),
            args=("serve",),
            env={
                "OLLAMA_HOST": f"0.0.0.0:{PORT}",
                "OLLAMA_MODELS": "/models",
                "OLLAMA_KEEP_ALIVE": "-1",
                "OLLAMA_NUM_PARALLEL": str(requests),
                **length,
                **spec.variables,
            },
            port=PORT,
            health="/",
        ),
        size=place.size_for((gb or chosen.most_gb) * 1e9 / 2**30) or place.sizes[-1],
        concurrency=min(requests, rules().limits.concurrency),
        boot_seconds=0,
        needs_internet=False,
        doubts=(
            "Ollama says that it is there before its model is loaded: the first request waits.",
            *(() if gb else (f"How large {spec.model} is, is not known here.",)),
        ),
    )


def _refuse(spec: DeploymentSpec) -> None:
    size, most = _gb(spec), rules().ollama.most_gb
    given = [name for name in _ONLY_VLLM if getattr(spec, name)]
    if size and size > most:
        raise InvalidArgument(
            f"{spec.model} is {size:g} GB: beyond {most:g} GB an image takes too long to build,"
            " to push and to start from.",
            fix='Leave engine out (vLLM), with weights="gs://BUCKET/FOLDER".',
        )
    if spec.access == "public":
        raise InvalidArgument(
            "Ollama has no key: anybody could use a public one at your cost.",
            fix='Leave access out ("private").',
        )
    if spec.weights not in {None, "baked"}:
        raise InvalidArgument("Ollama's model is in its image.", fix="Leave weights out.")
    if given:
        raise InvalidArgument(
            f"Ollama has no {', '.join(given)}.",
            fix="Leave them out; max_model_len and max_num_seqs it has.",
        )


def ollama_tag(model: str) -> str:
    """Return what Ollama calls a model: a tag as it is, a Hub id by the table."""
    if _TAG.fullmatch(model):
        return model
    known = rules().ollama.models
    found = next((tag for tag, row in known.items() if model in row.hub), None)
    if found is None:
        raise InvalidArgument(
            f"What Ollama calls {model} is not known here.",
            fix=f"Give its tag in Ollama's library, such as {next(iter(known))}.",
        )
    return found


def _gb(spec: DeploymentSpec) -> float | None:
    row = rules().ollama.models.get(ollama_tag(spec.model))
    return row.gb if row else None


def image_of(spec: DeploymentSpec, *, project: str, region: str) -> str:
    built = f"{region}-docker.pkg.dev/{project}/{REPOSITORY}/{spec.name}:{spec.fingerprint}"
    return spec.image or built


def dockerfile(spec: DeploymentSpec) -> str:
    """Return the image's recipe; its model also answers to the name that it was asked for by."""
    tag, name = ollama_tag(spec.model), spec.served_model_name
    also = f" && ollama cp {tag} {name}" if name != tag else ""
    ready = "seq 60 | while read _; do ollama list && break; sleep 1; done"
    return (
        f"FROM {rules().ollama.image}\n"
        f"ENV OLLAMA_HOST=0.0.0.0:{PORT} OLLAMA_MODELS=/models OLLAMA_KEEP_ALIVE=-1\n"
        f"RUN ollama serve & {ready}; ollama pull {tag}{also}\n"
        'ENTRYPOINT ["ollama", "serve"]\n'
    )


def build_of(spec: DeploymentSpec, *, project: str, region: str) -> Build:
    _refuse(spec)
    chosen, image = rules().ollama, image_of(spec, project=project, region=region)
    step, options = cloudbuild_v1.BuildStep, cloudbuild_v1.BuildOptions
    write = f"cat > Dockerfile <<'END'\n{dockerfile(spec)}END\n"
    # The model three times: pulled, in a layer, and pushed.
    room = max(chosen.build_disk_gb, math.ceil(3 * (_gb(spec) or chosen.most_gb)))
    return Build(
        steps=[
            step(id="recipe", name=chosen.builder, script=write),
            step(id="image", name=chosen.builder, args=["build", "--tag", image, "."]),
        ],
        images=[image],
        tags=[REPOSITORY, spec.name, spec.fingerprint],
        timeout=timedelta(seconds=chosen.build_seconds),
        # None named is the project's default account, which may hold anything. One of our own
        # has to come with a place for its log: `logging` below.
        service_account=f"projects/{project}/serviceAccounts/{account_of(project, BUILDER_ID)}",
        options=options(
            machine_type=_machine(spec),
            disk_size_gb=room,
            logging=options.LoggingMode.CLOUD_LOGGING_ONLY,
        ),
    )


def _machine(spec: DeploymentSpec) -> Any:
    """Return the machine type that was asked for, else none, which is Cloud Build's own choice.

    Larger ones are refused in the regions of new projects, and pulling a model is no work for them.
    """
    kinds: Any = cloudbuild_v1.BuildOptions.MachineType
    names = [kind.name for kind in kinds]
    wanted = (spec.build_machine or "UNSPECIFIED").upper().replace("-", "_")
    if wanted not in names:
        raise InvalidArgument(
            f"Cloud Build has no machine type {spec.build_machine}.",
            fix=f"Take one of {', '.join(names[1:])}, or leave build_machine out.",
        )
    return kinds[wanted]


def submit_command(spec: DeploymentSpec, *, project: str, region: str) -> str:
    said: dict[str, Any] = as_sent(build_of(spec, project=project, region=region))
    said["options"]["diskSizeGb"] = int(said["options"]["diskSizeGb"])
    return (
        f"cat > cloudbuild.yaml <<'END_OF_BUILD'\n{as_yaml(said)}END_OF_BUILD\n"
        f"gcloud builds submit --no-source --project={project} --region={region}"
        " --config=cloudbuild.yaml"
    )


def image_of_build(site: Site, spec: DeploymentSpec, *, project: str) -> Resource:
    """Return the image that holds a deployment's model: it is there, or its build is."""
    region = site.clients.region
    build = build_of(spec, project=project, region=region)

    async def get() -> DockerImage | Build | None:
        images = await _list_images(site, spec.name)
        if found := next((one for one in images if spec.fingerprint in one.tags), None):
            return found
        last = await latest_build(site, spec.name)
        return last if last and spec.fingerprint in last.tags else None

    def status(found: DockerImage | Build) -> Status:
        if isinstance(found, DockerImage):
            return Status.READY
        pending = is_under_way(found) or found.status.name == "SUCCESS"
        return Status.PENDING if pending else Status.FAILED

    async def put() -> None:
        client = await site.clients.build()
        request = {"parent": site.clients.parent, "project_id": project, "build": build}
        with strictly(f"build the image of {spec.name}"):
            await client.create_build(request=request, **writing())

    return Resource(
        name="image",
        title=f"the image with the model, {build.images[0]}",
        body={"projectId": project, "build": as_sent(build)},
        get=get,
        put=put,
        status=status,
        why=lambda build: CloudRefused(
            f"The image of {spec.name} could not be built.",
            cause=f"It ended as {build.status.name}."
            f" {build.failure_info.detail or build.status_detail}",
            fix="Change what the cause names, then call deploy_vllm again.",
        ),
        phase=BUILDING,
        command=submit_command(spec, project=project, region=region),
    )


def unfinished_build(site: Site, name: str) -> Resource:
    """Return a deployment's build while it is under way."""

    async def get() -> Build | None:
        build = await _unless_denied(lambda: latest_build(site, name))
        return build if build and is_under_way(build) else None

    async def delete() -> None:
        if build := await get():
            client, project = await site.clients.build(), site.clients.project
            request = {"name": build.name, "project_id": project, "id": build.id}
            with strictly(f"cancel the build of {name}"):
                await client.cancel_build(request=request, **writing())

    return Resource(name="build", title="its build, if one is under way", get=get, delete=delete)


def remaining_image(site: Site, name: str) -> Resource:
    """Return the images that were built for a deployment, as what stays of it."""

    async def delete() -> None:
        client = await site.clients.repositories()
        with strictly(f"delete the image of {name}"):
            await client.delete_package(name=f"{_repository(site)}/packages/{name}", **writing())

    def bill(found: Sequence[DockerImage]) -> tuple[str, float]:
        size = sum(image.image_size_bytes for image in found) / 1e9
        return f"the image {REPOSITORY}/{name} ({size:.1f} GB)", round(size * IMAGE_GB_USD, 2)

    return Resource(
        name="image",
        title=f"its image {REPOSITORY}/{name}, if one was built",
        get=lambda: _unless_denied(lambda: _list_images(site, name)),
        delete=delete,
        bill=bill,
    )


async def _unless_denied(look: Callable[[], Awaitable[T]]) -> T | None:
    """Look; where none may be seen, nothing can have been built from here."""
    try:
        return await look() or None
    except PermissionDenied:
        return None


async def latest_build(site: Site, name: str) -> Build | None:
    client = await site.clients.build()
    request = ListBuildsRequest(
        parent=site.clients.parent,
        project_id=site.clients.project,
        filter=f'tags="{REPOSITORY}" AND tags="{name}"',
        page_size=50,
    )
    with strictly(f"list the builds of {name}"):
        pager = await client.list_builds(request, **reading())
        builds = (await anext(pager.pages)).builds
    return max(builds, key=lambda build: when(build.create_time), default=None)


def is_under_way(build: Build) -> bool:
    return build.status.name in {"PENDING", "QUEUED", "WORKING"}


async def _list_images(site: Site, name: str) -> list[DockerImage]:
    client = await site.clients.repositories()
    with translated(f"list the images of {name}"):
        try:
            pager = await client.list_docker_images(parent=_repository(site), **reading())
            found = [image async for image in pager]
        except NotFound:
            return []
    return [image for image in found if f"/{REPOSITORY}/{name}@" in image.uri]


def _repository(site: Site) -> str:
    return f"{site.clients.parent}/repositories/{REPOSITORY}"
