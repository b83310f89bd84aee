"""What an environment must be: names, profiles that its region offers, a workspace's key."""

import re
from collections.abc import Mapping
from typing import Any, Final

from emulators.azure.fleet_shapes import environment_of
from emulators.azure.profiles import offered_in
from emulators.azure.profiles_known import CONSUMPTION
from emulators.azure.refusing import conflict, invalid
from emulators.azure.serving import Call

_NAME: Final = re.compile(r"^[a-zA-Z](?!.*--)[a-zA-Z0-9-]{0,58}[a-zA-Z0-9]$")
_LONGEST_PROFILE_NAME: Final = 15
"""Source: github.com/Azure/azure-cli/issues/31239."""
_APP: Final = "Microsoft.App/containerApps"
_LINKED: Final = "logAnalyticsConfiguration"


def check(
    call: Call, region: str, asked: Mapping[str, Any], there: Mapping[str, Any] | None
) -> None:
    """Refuse what Azure does not make.

    Raises:
        Refused: Something about it cannot be.
    """
    name = call.params["environment"]
    if not _NAME.match(name):
        raise invalid(
            f"Invalid ManagedEnvironment name '{name}'. A name must consist of alphanumeric"
            " characters or '-', start with an alphabetic character, end with an alphanumeric"
            " character and cannot have '--'. The length must not be more than 60 characters.",
            "ManagedEnvironmentInvalidName",
        )
    profiles = asked.get("workloadProfiles") or []
    for profile in profiles:
        _check_profile(call, region, profile)
    if len({one["name"] for one in profiles}) < len(profiles):
        raise invalid("Workload profile names must be unique.", "WorkloadProfileDuplicateName")
    _check_logs(asked)
    if there:
        _check_change(call, profiles, there)


def check_empty(call: Call) -> None:
    """Refuse to delete an environment that has apps.

    Raises:
        Refused: It has some.
    """
    apps = _apps(call)
    if apps:
        raise conflict(
            "ManagedEnvironmentHasContainerApps",
            f"The specified environment {call.params['environment']} cannot be deleted because it"
            f" still contains {len(apps)} ContainerApps.",
        )


def _check_profile(call: Call, region: str, profile: Mapping[str, Any]) -> None:
    name, kind = profile["name"], profile["workloadProfileType"]
    if len(name) > _LONGEST_PROFILE_NAME:
        raise invalid(
            f"Workload profile name '{name}' is too long. The maximum is {_LONGEST_PROFILE_NAME}"
            " characters.",
            "WorkloadProfileInvalidNameTooLong",
        )
    if kind not in offered_in(call.sub, region):
        raise invalid(
            f"Workload profile type '{kind}' is not supported in location '{region}'.",
            "WorkloadProfileTypeNotSupported",
        )
    if not kind.startswith(CONSUMPTION):
        return
    for key in ("minimumCount", "maximumCount"):
        if profile.get(key) is not None:
            raise invalid(
                f"Workload Profile property '{key[0].upper()}{key[1:]}' is not supported for"
                f" {kind.replace('-', '_')}",
                "WorkloadProfilePropertyNotSupported",
            )


def _check_logs(asked: Mapping[str, Any]) -> None:
    """A workspace is written with its key each time: what GET answers lacks it."""
    logs = asked.get("appLogsConfiguration") or {}
    if logs.get("destination") != "log-analytics":
        return
    linked = logs.get(_LINKED) or {}
    if not linked.get("customerId") or not linked.get("sharedKey"):
        raise invalid(
            "LogAnalyticsConfiguration is invalid. Must provide a valid LogAnalyticsConfiguration",
            "InvalidRequestParameterWithDetails",
        )


def _check_change(call: Call, profiles: list[dict[str, Any]], there: Mapping[str, Any]) -> None:
    before = {one["name"]: one for one in there["properties"].get("workloadProfiles") or []}
    after = {one["name"]: one for one in profiles}
    for name in after.keys() - before.keys():
        kind = after[name]["workloadProfileType"]
        if call.sub.knobs.old_environment and "GPU" in kind:
            raise invalid(
                f"Workload profile type '{kind}' is not supported by the environment"
                f" '{there['name']}': it was created before.",
                "WorkloadProfileTypeNotSupported",
            )
    for app in _apps(call):
        used = app["properties"].get("workloadProfileName", CONSUMPTION)
        if used in before and used not in after:
            raise conflict(
                "WorkloadProfileInUse",
                f"Workload profile '{used}' is used by the container app '{app['name']}'.",
            )


def _apps(call: Call) -> list[dict[str, Any]]:
    return [one for one in call.sub.of_type(_APP) if environment_of(one) == call.id]
