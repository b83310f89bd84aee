"""Cloud Build v1: what is refused at once, how a build goes, and how it is found again."""

import base64
import hashlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import anyio
import grpc.aio
from google.cloud.devtools.cloudbuild_v1.types import (
    Build,
    BuildOperationMetadata,
    BuildOptions,
    BuildStep,
    BuiltImage,
    CancelBuildRequest,
    CreateBuildRequest,
    GetBuildRequest,
    ListBuildsRequest,
    ListBuildsResponse,
    Results,
)
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc.status_pb2 import Status

from simulators.google import iam, logging, registry, secrets, serving
from simulators.google.logging import BadFilter, Comparison
from simulators.google.registry import repository_of
from simulators.google.secrets import created_now
from simulators.google.serving import Refused, add, invalid, page_of, take_fault, unary
from simulators.google.state import Project, World

LONGEST_SECONDS: Final = 86_400
USUAL_SECONDS: Final = 600
MOST_DISK_GB: Final = 4000
"""These three: the comments of google/devtools/cloudbuild/v1/cloudbuild.proto."""
_MOST_STEPS: Final = 300
_MOST_SUBSTITUTIONS: Final = 200
_MOST_KEY_BYTES: Final = 100
_MOST_VALUE_BYTES: Final = 4000
"""These: docs.cloud.google.com/build/docs/configuring-builds/substitute-variable-values."""
_KEY: Final = re.compile(r"^_[A-Z0-9_]+$")
_USED: Final = re.compile(
    r"\$(?:(?P<escape>\$)|\{(?P<braced>[A-Z0-9_]+)\}|(?P<bare>_?[A-Z][A-Z0-9_]*))"
)
_TAG: Final = re.compile(r"^[\w][\w.-]{0,127}$")
_ACT_AS: Final = "iam.serviceAccounts.actAs"
_OWN_ACCOUNT_LOGGING: Final = {"CLOUD_LOGGING_ONLY", "NONE", "GCS_ONLY"}


def checked(project: Project, asked: Build, build_id: str, location: str) -> Build:
    """Give the build as it is run: with its substitutions made.

    Raises:
        Refused: Something in it cannot be.
    """
    if not 0 < len(asked.steps) <= _MOST_STEPS:
        raise invalid(f"a build must have between 1 and {_MOST_STEPS} steps")
    _check_options(asked)
    _check_region(project, asked, location)
    _check_account(project, asked)
    _check_secrets(asked)
    for number, step in enumerate(asked.steps):
        _check_step(number, step)
    for tag in asked.tags:
        if not _TAG.match(tag):
            raise invalid(f"tag {tag!r} is not valid")
    built_in = {
        "PROJECT_ID": project.id,
        "PROJECT_NUMBER": project.number,
        "BUILD_ID": build_id,
        "LOCATION": location,
    }
    return _substituted(asked, built_in)


def timeout_seconds(build: Build) -> float:
    """Give how long it may take."""
    given = Build.pb(build).timeout
    return float(given.seconds + given.nanos / 1e9) or USUAL_SECONDS


def _check_options(asked: Build) -> None:
    if not 0 < timeout_seconds(asked) <= LONGEST_SECONDS:
        raise invalid("build.timeout must be greater than 0 and at most 24 hours")
    if not 0 <= asked.options.disk_size_gb <= MOST_DISK_GB:
        raise invalid(f"build.options.disk_size_gb must be at most {MOST_DISK_GB}")
    if not isinstance(asked.options.machine_type, BuildOptions.MachineType):
        raise invalid(f"build.options.machine_type {asked.options.machine_type} is not known")


def _check_region(project: Project, asked: Build, location: str) -> None:
    """Source of the words: google-github-actions/deploy-cloudrun issue 480 (2024-01-09)."""
    if location != "global" and asked.options.machine_type.name in project.knobs.refused_builders:
        raise Refused(
            "FAILED_PRECONDITION",
            "due to quota restrictions, Cloud Build cannot run builds of this machine type in this"
            " region, see https://cloud.google.com/build/docs/locations"
            "#restricted_regions_for_some_projects",
        )


def _check_account(project: Project, asked: Build) -> None:
    """A build under an account of one's own has to say where its log goes."""
    if not asked.service_account:
        return
    if asked.options.logging.name not in _OWN_ACCOUNT_LOGGING and not asked.logs_bucket:
        raise invalid(
            "if 'build.service_account' is specified, the build must either (a) specify"
            " 'build.logs_bucket', (b) use the REGIONAL_USER_OWNED_BUCKET build.options."
            "default_logs_bucket_behavior option, or (c) use either CLOUD_LOGGING_ONLY / NONE"
            " logging options"
        )
    email = asked.service_account.rpartition("/")[2]
    if email not in {*project.accounts, project.caller}:
        raise Refused("NOT_FOUND", f"service account {email} was not found")
    if project.denies(_ACT_AS):
        words = f"caller does not have permission to act as service account {email}"
        raise Refused("PERMISSION_DENIED", words)


def _check_secrets(asked: Build) -> None:
    known = {one.env for one in asked.available_secrets.secret_manager}
    for one in asked.available_secrets.secret_manager:
        if not re.match(r"^projects/[^/]+/secrets/[^/]+/versions/[^/]+$", one.version_name):
            raise invalid(f"invalid secret version name {one.version_name!r}")
    for step in asked.steps:
        missing = set(step.secret_env) - known
        if missing:
            raise invalid(f"secretEnv {min(missing)!r} is not defined in availableSecrets")
    used = {name for step in asked.steps for name in step.secret_env}
    if known - used:
        raise invalid(f"secret env {min(known - used)!r} is defined but not used")


def _check_step(number: int, step: BuildStep) -> None:
    if not step.name:
        raise invalid(f"build step {number} must specify a name")
    if step.script and (step.args or step.entrypoint):
        raise invalid(f"build step {number}: script cannot be used with args or entrypoint")


def _substituted(asked: Build, built_in: Mapping[str, str]) -> Build:
    given = _given(asked.substitutions)
    known = {**built_in, **given}
    loose = asked.options.substitution_option == BuildOptions.SubstitutionOption.ALLOW_LOOSE
    used: set[str] = set()

    def put(words: str) -> str:
        return _USED.sub(lambda found: _value(found, known, used, loose=loose), words)

    build = Build(asked)
    build.images = [put(image) for image in asked.images]
    for step in build.steps:  # a script is no template
        step.name, step.entrypoint = put(step.name), put(step.entrypoint)
        step.args = [put(one) for one in step.args]
        step.env = [put(one) for one in step.env]
    unused = sorted(set(given) - used)
    if unused and not loose:
        raise invalid(f'key in the substitution data "{unused[0]}" is not matched in the template')
    return build


def _value(found: re.Match[str], known: Mapping[str, str], used: set[str], *, loose: bool) -> str:
    if found["escape"]:
        return "$"
    key = found["braced"] or found["bare"]
    used.add(key)
    if key not in known and not loose:
        raise invalid(f'key in the template "{key}" is not a valid built-in substitution')
    return known.get(key, "")


def _given(substitutions: Mapping[str, str]) -> dict[str, str]:
    if len(substitutions) > _MOST_SUBSTITUTIONS:
        raise invalid(f"at most {_MOST_SUBSTITUTIONS} substitutions can be given")
    for key, value in substitutions.items():
        if not _KEY.match(key) or len(key.encode()) > _MOST_KEY_BYTES:
            raise invalid(f"substitution key {key!r} does not match the format of a key")
        if len(value.encode()) > _MOST_VALUE_BYTES:
            raise invalid(f"substitution {key} is longer than {_MOST_VALUE_BYTES} bytes")
    return dict(substitutions)


def words_of(step: BuildStep) -> Iterator[str]:
    """Give all that a step says of what it does."""
    yield from step.args
    yield step.script


_DOCKER: Final = re.compile(r"(^|/)(cloud-builders/docker|docker|kaniko-project/executor)(:|@|$)")
_FROM: Final = re.compile(r"^FROM\s+(?P<image>\S+)", re.MULTILINE)
_UPLOAD: Final = "artifactregistry.repositories.uploadArtifacts"
_WRITE_LOG: Final = "logging.logEntries.create"
_MIRRORS: Final = ("docker.io/", "mirror.gcr.io/", "index.docker.io/")
_UNKNOWN: Final = 2
"""The code of google.rpc that every failed build's operation has."""
_Kind: Any = Build.FailureInfo.FailureType
_Status: Any = Build.Status  # mypy takes its members for numbers


class Failed(Exception):
    """The build ends here."""

    def __init__(self, kind: Any, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


async def run(world: World, project: Project, build: Build, operation: Operation) -> None:
    """Take a queued build to its end; one that was cancelled meanwhile stays so."""
    build.status, build.start_time = _Status.WORKING, _now()
    _note(project, build, operation, "INFO", f'starting build "{build.id}"')
    world.keep(project)
    with anyio.move_on_after(timeout_seconds(build)) as limit:
        await anyio.sleep(project.knobs.boot_seconds)
    if build.status == _Status.WORKING:
        try:
            if limit.cancelled_caught:
                raise Failed(_Kind.FAILURE_TYPE_UNSPECIFIED, "build exceeded its timeout")  # noqa: TRY301  ends as the others do
            _go(world, project, build)
        except Failed as failed:
            status = _Status.TIMEOUT if limit.cancelled_caught else _Status.FAILURE
            _fail(project, build, operation, failed, status)
        else:
            build.status, build.finish_time = _Status.SUCCESS, _now()
            _note(project, build, operation, "INFO", "DONE")
            serving.succeeded(operation, build)
    world.keep(project)


def cancel(project: Project, build: Build, operation: Operation) -> None:
    """End a build that has not ended."""
    failed = Failed(_Kind.FAILURE_TYPE_UNSPECIFIED, "build cancelled")
    _fail(project, build, operation, failed, _Status.CANCELLED)


def _go(world: World, project: Project, build: Build) -> None:
    _read_secrets(project, build)
    built: set[str] = set()
    said = "" if not build.source else "Dockerfile"
    for number, step in enumerate(build.steps):
        said += "\n".join(words_of(step))
        built.update(_stepped(world, project, build, number, step, said))
    digests = {image: _pushed(project, build, image, built) for image in build.images}
    project.images.update(digests)
    images = [BuiltImage(name=image, digest=digest) for image, digest in digests.items()]
    build.results = Results(images=images)


def _stepped(
    world: World, project: Project, build: Build, number: int, step: BuildStep, said: str
) -> Iterator[str]:
    """Give what images a step builds; `said` is what it and those before it say."""
    what = step.id or str(number)
    fault = take_fault(project, f"cloudbuild.step/{what}")
    if fault:
        raise Failed(_Kind.USER_BUILD_STEP, f"build step {number} failed: {fault.refusal.message}")
    tags = list(_tags(step))
    if not tags:
        return
    if "Dockerfile" not in said:
        raise Failed(
            _Kind.USER_BUILD_STEP,
            f'build step {number} "{step.name}" failed: unable to prepare context: lstat'
            " /workspace/Dockerfile: no such file or directory",
        )
    for base in _FROM.findall(said):
        if not _known(world, base):
            detail = f"manifest for {base} not found: manifest unknown"
            raise Failed(_Kind.USER_BUILD_STEP, f"build step {number} failed: {detail}")
    for tag in tags:
        text = f"Step #{number} - {what}: Successfully tagged {tag}"
        _write(project, build, "INFO", text)
        yield tag


def _tags(step: BuildStep) -> Iterator[str]:
    """Give the images that a step's own words say it builds."""
    words = " ".join(words_of(step)).split()
    if not _DOCKER.search(step.name) or not (
        {"build", "buildx"} & set(words) or "kaniko" in step.name
    ):
        return
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        if option in {"--tag", "--destination", "-t"} and value:
            yield value
        elif before in {"-t", "--tag", "--destination"}:
            yield word


def _known(world: World, base: str) -> bool:
    for mirror in _MIRRORS:
        base = base.removeprefix(mirror)
    if base == "scratch":
        return True
    name, _, digest = base.partition("@")
    name, _, tag = name.partition(":")
    name = name if "/" in name else f"library/{name}"
    return registry.digest_of(world, name, digest or tag or "latest") is not None


def _read_secrets(project: Project, build: Build) -> None:
    account = build.service_account.rpartition("/")[2]
    for one in build.available_secrets.secret_manager:
        _projects, _id, _secrets, secret, _versions, version = one.version_name.split("/")
        try:
            secrets.value_for(project, secret, version, account or project.caller)
        except Refused as refused:
            detail = f"failed to access secret version for secret {one.version_name}: {refused}"
            raise Failed(_Kind.USER_BUILD_STEP, detail) from refused


def _pushed(project: Project, build: Build, image: str, built: set[str]) -> str:
    """Push an image that a step built; gives its digest."""
    if image not in built:
        detail = f'failed to find one or more images after execution of build steps: ["{image}"]'
        raise Failed(_Kind.PUSH_IMAGE_NOT_FOUND, detail)
    repository = repository_of(project, image)
    if repository is None:
        detail = f'failed to push: name unknown: Repository of "{image}" not found'
        raise Failed(_Kind.PUSH_FAILED, detail)
    own = project.repository_policies.get(repository, Policy())
    if not _may_building(build, _UPLOAD, project.policy, own):
        detail = f'denied: Permission "{_UPLOAD}" denied on resource "{repository}"'
        raise Failed(_Kind.PUSH_NOT_AUTHORIZED, detail)
    _write(project, build, "INFO", f"Pushing {image}")
    return "sha256:" + hashlib.sha256(f"{image} {build.id}".encode()).hexdigest()


def _fail(
    project: Project, build: Build, operation: Operation, failed: Failed, status: Any
) -> None:
    build.status, build.finish_time, build.status_detail = status, _now(), failed.detail
    build.failure_info = Build.FailureInfo(type_=failed.kind, detail=failed.detail)
    _note(project, build, operation, "ERROR", f"ERROR: {failed.detail}")
    message = f"Build failed; check build logs for details ({failed.detail})"
    operation.error.CopyFrom(Status(code=_UNKNOWN, message=message))
    operation.done = True


def _note(project: Project, build: Build, operation: Operation, severity: str, text: str) -> None:
    operation.metadata.Pack(BuildOperationMetadata.pb(BuildOperationMetadata(build=build)))
    _write(project, build, severity, text)


def _write(project: Project, build: Build, severity: str, text: str) -> None:
    wanted = build.options.logging != BuildOptions.LoggingMode.NONE
    if wanted and _may_building(build, _WRITE_LOG, project.policy):
        labels = {"build_id": build.id, "build_trigger_id": ""}
        project.append(severity, text, labels, "cloudbuild", resource="build")


def _may_building(build: Build, permission: str, *kept: Policy) -> bool:
    """Whether the account that a build names is allowed something by one of these policies."""
    account = build.service_account.rpartition("/")[2]
    return not account or any(iam.granted(one, account, permission) for one in kept)


def _now() -> Timestamp:
    seconds = time.time()
    return Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def unfinished(builds: Sequence[Build]) -> list[Build]:
    """Give those that have not ended."""
    going = {_Status.QUEUED, _Status.WORKING}
    return [build for build in builds if build.status in going]


_GLOBAL: Final = "global"


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "CreateBuild": unary(CreateBuildRequest, Operation, _create, _may("create")),
        "GetBuild": unary(GetBuildRequest, Build, _get, _may("get")),
        "ListBuilds": unary(ListBuildsRequest, ListBuildsResponse, _list, _may("list")),
        "CancelBuild": unary(CancelBuildRequest, Build, _cancel, _may("update")),
    }
    api = "cloudbuild.googleapis.com"
    add(server, world, "google.devtools.cloudbuild.v1.CloudBuild", methods, api=api)


def resume(world: World) -> None:
    """Go on with what an earlier process did not finish."""
    for project in world:
        for build in unfinished(list(project.builds.values())):
            operation = _operation(project, build)
            world.tasks.start_soon(run, world, project, build, operation)


def _may(what: str) -> str:
    return f"cloudbuild.builds.{what}"


async def _create(world: World, project: Project, request: CreateBuildRequest) -> Operation:
    build_id = str(uuid.uuid4())
    location = _location(request.parent)
    build = checked(project, request.build, build_id, location)
    build.id, build.project_id = build_id, project.id
    build.name = f"projects/{project.number}/locations/{location}/builds/{build_id}"
    queued: Any = Build.Status.QUEUED
    build.status, build.create_time = queued, created_now()
    build.log_url = f"https://console.cloud.google.com/cloud-build/builds/{build_id}"
    project.builds[build_id] = build
    metadata = BuildOperationMetadata(build=build)
    operation = serving.opened(project, _operation_name(project, build), metadata)
    begun = Operation()
    begun.CopyFrom(operation)
    world.tasks.start_soon(run, world, project, build, operation)
    return begun


async def _get(_world: World, project: Project, request: GetBuildRequest) -> Build:
    return _found(project, request.name or request.id)


async def _list(_world: World, project: Project, request: ListBuildsRequest) -> ListBuildsResponse:
    location = _location(request.parent)
    try:
        node = logging.parse(request.filter)
        for one in logging.comparisons(node):
            _judge(one, Build())
        rows = [
            build
            for build in reversed(project.builds.values())
            if f"/locations/{location}/" in build.name
            and logging.holds(node, lambda one, build=build: _judge(one, build))  # type: ignore[misc]  # bound for the loop
        ]
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    page, token = page_of(rows, request.page_size, request.page_token, most=1000, usual=50)
    return ListBuildsResponse(builds=page, next_page_token=token)


async def _cancel(_world: World, project: Project, request: CancelBuildRequest) -> Build:
    build = _found(project, request.name or request.id)
    if not unfinished([build]):
        raise Refused("FAILED_PRECONDITION", f"build {build.id} has already finished")
    cancel(project, build, _operation(project, build))
    return build


def _judge(one: Comparison, build: Build) -> bool:
    if one.field == "tags":
        return (one.value in build.tags) == (one.operator in {"=", ":"})
    if one.field in {"id", "build_id"}:
        return logging.ordered(one.operator, build.id, one.value)
    if one.field == "status":
        return logging.ordered(one.operator, build.status.name, one.value)
    raise BadFilter(f"invalid list filter: {one.field!r} is not supported")


def _found(project: Project, name: str) -> Build:
    build_id = name.rpartition("/")[2]
    found: Build | None = project.builds.get(build_id)
    if found is None:
        raise Refused("NOT_FOUND", f"build {build_id} not found")
    return found


def _location(parent: str) -> str:
    parts = parent.split("/")
    return parts[3] if len(parts) == 4 and parts[2] == "locations" else _GLOBAL


def _operation(project: Project, build: Build) -> Operation:
    found: Operation = project.operations[_operation_name(project, build)]
    return found


def _operation_name(project: Project, build: Build) -> str:
    told = base64.urlsafe_b64encode(build.id.encode()).decode().rstrip("=")
    return f"operations/build/{project.id}/{told}"
