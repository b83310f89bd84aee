"""What ARM's bodies of apps and revisions say to those who run them."""

from dataclasses import dataclass
from typing import Any, Final

from emulators.azure.profiles_known import CONSUMPTION
from emulators.azure.state import Subscription

Body = dict[str, Any]
_MOST: Final = 10
_COOLDOWN_SECONDS: Final = 300.0
_POLLING_SECONDS: Final = 30.0
_CONCURRENT: Final = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas a revision has; Azure's defaults where nothing is said."""

    least: int
    most: int
    cooldown_seconds: float
    polling_seconds: float
    concurrent: int
    """Requests at once for which one replica is enough."""


def short(body: Body) -> str:
    """Give a resource's name."""
    return str(body["name"])


def app_id_of(revision: Body) -> str:
    """Give the id of a revision's app, in lower case."""
    return str(revision["id"]).lower().partition("/revisions/")[0]


def template_of(body: Body) -> Body:
    """Give the template of an app or a revision."""
    return body["properties"].get("template") or {}


def container_of(body: Body) -> Body:
    """Give the container that has the GPU: the first."""
    found: Body = (template_of(body).get("containers") or [{}])[0]
    return found


def probe_of(body: Body, kind: str) -> Body | None:
    """Give the container's probe of a kind such as Startup."""
    probes = container_of(body).get("probes") or []
    return next((one for one in probes if one.get("type") == kind), None)


def scale_of(body: Body) -> Scale:
    """Give how it scales."""
    told = template_of(body).get("scale") or {}
    rules = [one["http"] for one in told.get("rules") or [] if one.get("http")]
    metadata = (rules[0].get("metadata") or {}) if rules else {}
    return Scale(
        least=told.get("minReplicas") or 0,
        most=told.get("maxReplicas") or _MOST,
        cooldown_seconds=told.get("cooldownPeriod") or _COOLDOWN_SECONDS,
        polling_seconds=told.get("pollingInterval") or _POLLING_SECONDS,
        concurrent=int(metadata.get("concurrentRequests", _CONCURRENT)),
    )


def ingress_of(app: Body) -> Body | None:
    """Give an app's ingress; None where nobody can ask it."""
    found: Body | None = app["properties"].get("configuration", {}).get("ingress")
    return found


def port_of(app: Body) -> int:
    """Give the port that the ingress asks the container on."""
    return int((ingress_of(app) or {}).get("targetPort") or 80)


def is_stopped(app: Body) -> bool:
    """Whether nothing may run of it."""
    return bool(app["properties"].get("runningStatus") == "Stopped")


def environment_of(app: Body) -> str:
    """Give the id of an app's environment, in lower case."""
    told = app["properties"]
    return str(told.get("environmentId") or told.get("managedEnvironmentId") or "").lower()


def profile_of(app: Body) -> str:
    """Give the name of the profile that an app runs on."""
    return str(app["properties"].get("workloadProfileName") or CONSUMPTION)


def profile_type_of(sub: Subscription, app: Body) -> str:
    """Give the type of the profile that an app runs on."""
    environment = sub.get(environment_of(app)) or {"properties": {}}
    for profile in environment["properties"].get("workloadProfiles") or []:
        if profile["name"] == profile_of(app):
            return str(profile["workloadProfileType"])
    return CONSUMPTION


def revisions_of(sub: Subscription, app_id: str) -> list[Body]:
    """Give every revision that is kept of an app, oldest first."""
    return sub.under(f"{app_id}/revisions")
