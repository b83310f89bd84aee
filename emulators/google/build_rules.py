"""What Cloud Build says at once of a build that it is handed."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from google.cloud.devtools.cloudbuild_v1.types import Build, BuildOptions, BuildStep

from emulators.google.refusing import Refused, invalid
from emulators.google.state import Project

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
