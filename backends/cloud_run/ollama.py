"""The small way: a model that Cloud Build bakes into Ollama's image, served without a key."""

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from backends.cloud_run import rules
from backends.cloud_run.names import REPOSITORY, builder_account
from backends.cloud_run.serving import Container, Serving
from backends.common.written import as_yaml
from backends.google import slim
from backends.google.sent import as_sent
from core.errors import InvalidArgument
from core.records import DeploymentSpec, Target

if TYPE_CHECKING:
    from google.cloud.devtools import cloudbuild_v1

PORT: Final = 8080
_BUILD: Final = "google.cloud.devtools.cloudbuild_v1"
_TAG: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?:[A-Za-z0-9][A-Za-z0-9._-]*")
_ONLY_VLLM: Final = (
    "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes", "max_num_batched_tokens",
    "quantization", "dtype", "cpu_offload_gb", "enforce_eager", "engine_args",
)  # fmt: skip


def serving(target: Target, spec: DeploymentSpec, *, project: str, region: str) -> Serving:
    """Decide how Ollama serves a model.

    Raises:
        InvalidArgument: The model is too large or not known, or the spec asks for what is vLLM's.
    """
    _refuse(spec)
    place, chosen = rules.place_for(target, spec, "baked"), rules.rules().ollama
    gib = (_gb(spec) or chosen.most_gb) * 1e9 / 2**30
    requests = spec.max_num_seqs or chosen.parallel
    return Serving(
        container=Container(
            image=image_of(spec, project=project, region=region),
            command=("ollama",),
            args=("serve",),
            env={**_environment(spec, requests), **spec.variables},
            port=PORT,
            health="/",
        ),
        size=place.size_for(gib) or place.sizes[-1],
        concurrency=min(requests, rules.rules().limits.concurrency),
        boot_seconds=0,
        needs_internet=False,
        doubts=(
            "Ollama says that it is there before its model is loaded: the first request waits.",
            *(() if _gb(spec) else (f"How large {spec.model} is, is not known here.",)),
        ),
    )


def tag_of(model: str) -> str:
    """Give what Ollama calls a model: a tag as it is, a Hub id by the table.

    Raises:
        InvalidArgument: It is neither.
    """
    if _TAG.fullmatch(model):
        return model
    known = rules.rules().ollama.models
    found = next((tag for tag, row in known.items() if model in row.hub), None)
    if found is None:
        raise InvalidArgument(
            f"What Ollama calls {model} is not known here.",
            fix=f"Give its tag in Ollama's library, such as {next(iter(known))}.",
        )
    return found


def image_of(spec: DeploymentSpec, *, project: str, region: str) -> str:
    """Name the image that holds a deployment's model: the one given, or the one that is built."""
    if spec.image:
        return spec.image
    return f"{region}-docker.pkg.dev/{project}/{REPOSITORY}/{spec.name}:{spec.fingerprint}"


def dockerfile(spec: DeploymentSpec) -> str:
    """Write the image's recipe; its model also answers to the name that it was asked for by."""
    tag, name = tag_of(spec.model), spec.served_model_name
    also = f" && ollama cp {tag} {name}" if name != tag else ""
    ready = "seq 60 | while read _; do ollama list && break; sleep 1; done"
    return (
        f"FROM {rules.rules().ollama.image}\n"
        f"ENV OLLAMA_HOST=0.0.0.0:{PORT} OLLAMA_MODELS=/models OLLAMA_KEEP_ALIVE=-1\n"
        f"RUN ollama serve & {ready}; ollama pull {tag}{also}\n"
        'ENTRYPOINT ["ollama", "serve"]\n'
    )


def build_of(spec: DeploymentSpec, *, project: str, region: str) -> "cloudbuild_v1.Build":
    """Type the build: nothing is uploaded, its first step writes the Dockerfile.

    Raises:
        InvalidArgument: The model is too large for an image, or not known.
    """
    _refuse(spec)
    slim.opened(_BUILD)
    from google.cloud.devtools import cloudbuild_v1

    chosen, image = rules.rules().ollama, image_of(spec, project=project, region=region)
    write = f"cat > Dockerfile <<'END'\n{dockerfile(spec)}END\n"
    logging = cloudbuild_v1.BuildOptions.LoggingMode.CLOUD_LOGGING_ONLY
    return cloudbuild_v1.Build(
        steps=[
            cloudbuild_v1.BuildStep(id="recipe", name=chosen.builder, script=write),
            cloudbuild_v1.BuildStep(
                id="image", name=chosen.builder, args=["build", "--tag", image, "."]
            ),
        ],
        images=[image],
        tags=[REPOSITORY, spec.name, spec.fingerprint],
        timeout=timedelta(seconds=chosen.build_seconds),
        # None named is the project's default account, which may hold anything. One of our own
        # has to come with a place for its log: `logging` below.
        service_account=f"projects/{project}/serviceAccounts/{builder_account(project)}",
        options=cloudbuild_v1.BuildOptions(
            machine_type=_machine(spec), disk_size_gb=disk_gb(spec), logging=logging
        ),
    )


def _machine(spec: DeploymentSpec) -> Any:
    """Return the machine type that was asked for, else none, which is Cloud Build's own choice.

    Larger ones are refused in the regions of new projects, and pulling a model is no work for them.
    """
    from google.cloud.devtools import cloudbuild_v1

    kinds: Any = cloudbuild_v1.BuildOptions.MachineType
    names = [kind.name for kind in kinds]
    wanted = (spec.build_machine or "UNSPECIFIED").upper().replace("-", "_")
    if wanted not in names:
        raise InvalidArgument(
            f"Cloud Build has no machine type {spec.build_machine}.",
            fix=f"Take one of {', '.join(names[1:])}, or leave build_machine out.",
        )
    return kinds[wanted]


def disk_gb(spec: DeploymentSpec) -> int:
    """Give the builder room for the model three times: pulled, in a layer, and pushed."""
    chosen = rules.rules().ollama
    return max(chosen.build_disk_gb, math.ceil(3 * (_gb(spec) or chosen.most_gb)))


def cloudbuild_yaml(spec: DeploymentSpec, *, project: str, region: str) -> str:
    """Write the same build for `gcloud builds submit`."""
    sent: dict[str, Any] = as_sent(build_of(spec, project=project, region=region))
    sent["options"]["diskSizeGb"] = int(sent["options"]["diskSizeGb"])
    return as_yaml(sent)


def submit(spec: DeploymentSpec, *, project: str, region: str) -> str:
    """Say how a person starts the build."""
    written = cloudbuild_yaml(spec, project=project, region=region)
    return (
        f"cat > cloudbuild.yaml <<'END_OF_BUILD'\n{written}END_OF_BUILD\n"
        f"gcloud builds submit --no-source --project={project} --region={region}"
        " --config=cloudbuild.yaml"
    )


def _environment(spec: DeploymentSpec, requests: int) -> dict[str, str]:
    length = {"OLLAMA_CONTEXT_LENGTH": str(spec.max_model_len)} if spec.max_model_len else {}
    return {
        "OLLAMA_HOST": f"0.0.0.0:{PORT}",
        "OLLAMA_MODELS": "/models",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NUM_PARALLEL": str(requests),
        **length,
    }


def _gb(spec: DeploymentSpec) -> float | None:
    row = rules.rules().ollama.models.get(tag_of(spec.model))
    return row.gb if row else None


def _refuse(spec: DeploymentSpec) -> None:
    size, most = _gb(spec), rules.rules().ollama.most_gb
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
    given = [name for name in _ONLY_VLLM if getattr(spec, name)]
    if given:
        raise InvalidArgument(
            f"Ollama has no {', '.join(given)}.",
            fix="Leave them out; max_model_len and max_num_seqs it has.",
        )
