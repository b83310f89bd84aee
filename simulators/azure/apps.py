"""Container apps and revisions: what they must be; made, changed, rolled out, started, stopped."""

import copy
import ipaddress
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
from starlette.responses import Response

from simulators.azure import fleet
from simulators.azure.admission import Refused, denied, refusal
from simulators.azure.arm import (
    Call,
    begin,
    check_free,
    display_of,
    kind_of,
    letters,
    location,
    moment,
    plain_region,
)
from simulators.azure.ground import (
    APP,
    CONSUMPTION,
    PROFILES,
    environment_of,
    profile_types,
    refuse_by_policy,
)
from simulators.azure.replicas import (
    Unreadable,
    asked_by_time,
    container_of,
    is_stopped,
    replica_body,
    revisions_of,
    secret_value,
    times_of,
)
from simulators.azure.state import Body, Operation, Subscription, World

_REVISION: Final = f"{APP}/revisions"
_LINKED: Final = (
    "Microsoft.App/managedEnvironments/join/action",
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
)
"""What an app takes on what it is linked to."""
_TOKEN_SECONDS: Final = 1800
_LOOK_SECONDS: Final = 0.02
_MOST_REPLICAS: Final = 1000
_PROBE_LIMITS: Final[dict[str, tuple[int, int]]] = {
    "initialDelaySeconds": (0, 60),
    "periodSeconds": (1, 240),
    "timeoutSeconds": (1, 240),
}
"""Source: the descriptions in Microsoft's ARM schema; a delay of none is taken as well."""
_PROBE_FAILURES: Final = {"Liveness": 30, "Readiness": 48}
"""Source: terraform-provider-azurerm, pull request 31989."""
_INGRESS: Final = {
    "external": False, "transport": "auto", "allowInsecure": False, "exposedPort": 0,
    "traffic": [{"weight": 100, "latestRevision": True}],
}  # fmt: skip
_RESOURCES: Final = {"cpu": 0.5, "memory": "1Gi"}


def _filled(asked: Body) -> Body:
    """Return what was asked for with those of Azure's defaults that depend on it."""
    body = copy.deepcopy(asked)
    properties = body["properties"]
    environment = properties.get("environmentId") or properties.get("managedEnvironmentId")
    properties |= {"environmentId": environment, "managedEnvironmentId": environment}
    if ingress := properties["configuration"].get("ingress"):
        properties["configuration"]["ingress"] = {**copy.deepcopy(_INGRESS), **ingress}
    for container in properties["template"].get("containers") or []:
        given = container.get("resources") or {}
        container["resources"] = {**_RESOURCES, **given, "ephemeralStorage": "8Gi"}
    return body


def _check(call: Call, asked: Body) -> None:
    """Refuse what Azure does not make; `asked` has its defaults.

    Raises:
        Refused: Something about it cannot be.
    """
    configuration, template = asked["properties"]["configuration"], asked["properties"]["template"]
    _check_secrets(call, asked, configuration.get("secrets") or [])
    _check_addresses((configuration.get("ingress") or {}).get("ipSecurityRestrictions") or [])
    for container in template["containers"]:
        for probe in container.get("probes") or []:
            _check_probe(call, container["name"], probe)
    least, most = template["scale"].get("minReplicas") or 0, template["scale"]["maxReplicas"]
    if not 0 <= least <= most or not 1 <= most <= _MOST_REPLICAS:
        why = f"minReplicas {least} and maxReplicas {most} do not go together"
        raise refusal("app-scale", why=why)
    for metadata in times_of(template["scale"]):
        try:
            asked_by_time(metadata, call.sub.now)
        except ValueError as exc:
            raise refusal("app-scale", why=exc) from exc
    for volume in template.get("volumes") or []:
        name, stored = volume.get("name") or "", volume.get("storageName")
        linked = volume.get("storageType") in {"AzureFile", "NfsAzureFile"}
        if linked and call.sub.get(f"{environment_of(asked)}/storages/{stored}") is None:
            raise refusal("app-storage", storage=stored, name=name)


def check_place(call: Call, asked: Body, there: Body | None) -> None:
    """Refuse an app or a job that cannot be in its environment, or has no container.

    Raises:
        Refused: It is in another one, which cannot be changed, or this one lacks something.
    """
    for linked in _LINKED if call.verb == "PUT" else ():
        if denied(call.sub, linked):
            action = f"{call.kind.type}/write"
            raise refusal("linked", action=action, scope=call.path, linked=linked)
    if there and environment_of(asked) != environment_of(there):
        raise refusal("app-moved", name=there["name"])
    named = asked["properties"]["environmentId"] or ""
    words = named.lower().split("/")
    if len(words) != 9 or words[6:8] != ["microsoft.app", "managedenvironments"]:
        raise refusal("app-environment", value=named)
    found = call.sub.get(named)
    if found is None:
        raise refusal("app-no-environment", name=named)
    if plain_region(found["location"]) != plain_region(asked["location"]):
        raise refusal("app-location", asked=asked["location"], there=found["location"])
    if found["properties"]["provisioningState"] not in {"Succeeded", "Waiting"}:
        raise refusal("app-early", name=named)
    types = profile_types(found)
    profile = asked["properties"]["workloadProfileName"]
    if profile not in types:
        raise refusal("app-profile", profile=profile, name=found["name"])
    containers = asked["properties"]["template"].get("containers") or []
    if not containers:
        raise refusal("app-empty")
    _check_total(call, containers, types[profile])


def _check_secrets(call: Call, asked: Body, rows: Sequence[Body]) -> None:
    """Refuse identities that are not there, and secrets that nothing stands behind."""
    given = (asked.get("identity") or {}).get("userAssignedIdentities") or {}
    for named in given:
        if call.sub.get(named) is None:
            raise refusal("app-identity", name=named)
    known = {"system", *(one.lower() for one in given)}
    for row in rows:
        name, url, identity = (row.get(key) or "" for key in ("name", "keyVaultUrl", "identity"))
        if not row.get("value") and not (url and identity):
            why = "value or keyVaultUrl and identity should be provided"
            raise refusal("app-secret", name=name, why=why)
        if url and identity.lower() not in known:
            raise refusal("app-secret-identity", identity=identity, name=name)
    names = {row.get("name") for row in rows}
    for container in asked["properties"]["template"].get("containers") or []:
        for variable in container.get("env") or []:
            wanted = variable.get("secretRef")
            if wanted and wanted not in names:
                raise refusal("app-secret-ref", name=wanted, container=container["name"])


def _check_addresses(rows: Sequence[Body]) -> None:
    if len({one["action"] for one in rows}) > 1:
        raise refusal("app-addresses", why="all rules must have the same action")
    for row in rows:
        try:
            ipaddress.IPv4Network(row["ipAddressRange"])
        except ValueError as exc:
            why = f"'{row['ipAddressRange']}' is not a range of IPv4 addresses"
            raise refusal("app-addresses", why=why) from exc


def _check_probe(call: Call, name: str, probe: Mapping[str, Any]) -> None:
    failures = _PROBE_FAILURES.get(probe["type"], call.sub.knobs.startup_failures)
    for key, (least, most) in {**_PROBE_LIMITS, "failureThreshold": (1, failures)}.items():
        value, told = probe.get(key), f"{key[0].upper()}{key[1:]}"
        if value is not None and not least <= value <= most:
            raise refusal("app-probe-range", key=told, name=name, least=least, most=most)


def _check_total(call: Call, containers: Sequence[Body], profile_type: str) -> None:
    """On a GPU, and on Consumption, only certain pairs are taken."""
    texts = [str(one["resources"]["memory"]) for one in containers]
    cpu = sum(one["resources"]["cpu"] for one in containers)
    wrong = refusal("app-total", cpu=f"{cpu:g}", memory="+".join(texts), profile=profile_type)
    try:
        memory = sum(float(one.removesuffix("Gi")) for one in texts)
    except ValueError as exc:
        raise wrong from exc
    profile = PROFILES[profile_type]
    if profile_type == CONSUMPTION:
        fits = cpu in {n / 4 for n in range(1, 17)} and memory == 2 * cpu
    elif profile.gpus and call.sub.knobs.whole_nodes:
        fits = (cpu, memory) == (profile.cores, profile.memory_gib)
    else:
        fits = cpu <= profile.cores and memory <= profile.memory_gib
    if not fits:
        raise wrong


def _app(call: Call, asked: Body, there: Body | None) -> Body:
    """Return the app's body, and which revision is to be made, if one is."""
    asked = _filled(asked)
    refuse_by_policy(call.sub, APP, call.name, asked)
    check_place(call, asked, there)
    if there:
        _check_change(call, there)
    _check(call, asked)
    properties, old, now = asked["properties"], (there or {}).get("properties", {}), moment()
    revision, keys = "", ("template", "workloadProfileName")
    if any(old.get(key) != properties.get(key) for key in keys):
        revision = _revision_name(call, properties["template"].get("revisionSuffix") or "")
    named = ("latestRevisionName", "latestReadyRevisionName")
    return {
        "location": display_of(plain_region(asked["location"])),
        "systemData": {
            "createdAt": (there or {"systemData": {"createdAt": now}})["systemData"]["createdAt"],
            "lastModifiedAt": now,
        },
        "identity": identity_of(call.sub, asked, there),
        "properties": {
            **properties,
            **{key: old[key] for key in named if key in old},
            "runningStatus": old.get("runningStatus", "Progressing"),
        },
        "revision": revision,
    }


def _check_change(call: Call, there: Body) -> None:
    provisioned = any(
        one["properties"]["provisioningState"] == "Provisioned"
        for one in revisions_of(call.sub, call.id)
    )
    if there["properties"]["provisioningState"] == "Failed" and not provisioned:
        raise refusal("app-broken", name=there["name"])


def _revision_name(call: Call, suffix: str) -> str:
    name = f"{call.name}--{suffix or letters(7)}"
    if call.sub.get(f"{call.path}/revisions/{name}"):
        raise refusal("app-revision", name=name)
    return name


def identity_of(sub: Subscription, asked: Body, there: Body | None) -> Body:
    """Fill in whose the identities are; one of its own is the same as long as it is there."""
    told: Body = dict(asked.get("identity") or {"type": "None"})
    for name in told.get("userAssignedIdentities") or {}:
        properties = (sub.get(name) or {"properties": {}})["properties"]
        known = {key: properties.get(key, "") for key in ("principalId", "clientId")}
        told["userAssignedIdentities"] = {**told["userAssignedIdentities"], name: known}
    if "SystemAssigned" in told["type"]:
        before = (there or {}).get("identity", {}).get("principalId")
        told |= {"principalId": before or str(uuid.uuid4()), "tenantId": sub.tenant}
    return told


def _shown(world: World, sub: Subscription, app: Body) -> Body:
    """Tell the addresses that it has now."""
    properties, configuration = app["properties"], app["properties"]["configuration"]
    path = app["id"].replace("/providers/Microsoft.App", "")
    properties["eventStreamEndpoint"] = f"{world.urls.http}{path}/eventstream"
    if configuration.get("ingress"):
        address = fleet.address(world, sub, app)
        configuration["ingress"]["fqdn"] = properties["latestRevisionFqdn"] = address
    return app


async def _written(world: World, sub: Subscription, operation: Operation, app: Body) -> None:
    """Make a revision of a new template; an app that was stopped runs again by it."""
    properties = app["properties"]
    if name := operation.revision:
        properties |= {"latestRevisionName": name, "runningStatus": "Progressing"}
        revision = _revision_of(world, sub, app, name)
        _roll_out(world, sub, app, revision)
        await _wait_for(sub, app, name)
    if not is_stopped(app):
        properties["runningStatus"] = "Running"


def _revision_of(world: World, sub: Subscription, app: Body, name: str) -> Body:
    """Make the revision of an app's template as it is now, unless it is there already."""
    path = f"{app['id']}/revisions/{name}"
    if there := sub.get(path):
        return there
    properties: Body = {
        "createdTime": moment(),
        "template": copy.deepcopy(app["properties"]["template"]),
        "active": True,
        "healthState": "None",
        "provisioningState": "Provisioning",
        "runningState": "Processing",
    }
    if app["properties"]["configuration"].get("ingress"):
        properties["fqdn"] = fleet.address(world, sub, app)
    made = {"id": path, "name": name, "type": _REVISION, "properties": properties}
    sub.resources[path.lower()] = made
    return made


def _roll_out(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    """Let a new revision begin; it boots by itself, and serves when it is ready.

    Raises:
        Refused: Its image or one of its secrets cannot be had: the change of the app has failed.
    """
    name, properties = revision["name"], revision["properties"]
    ours = fleet.fleet_of(world, sub, app)
    try:
        _check_parts(world, sub, app, revision)
    except Refused as refused:
        properties |= {
            "active": False,
            "provisioningState": "Failed",
            "provisioningError": refused.message,
            "runningState": "Failed",
            "healthState": "Unhealthy",
        }
        ours.say("RevisionProvisioningFailed", refused.message, name)
        raise
    properties |= {"provisioningState": "Provisioned", "active": True}
    ours.say("RevisionCreation", f"Creating new revision '{name}'", name)
    ours.begin(revision)


def _check_parts(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    container = container_of(revision)
    if sub.knobs.rollout == "image-missing":
        why = f"'{container['image']}': MANIFEST_UNKNOWN: manifest unknown"
        field = f"template.containers.{container['name']}.image"
        raise refusal("app-failed", name=app["name"], field=field, why=why)
    try:
        for secret in app["properties"]["configuration"].get("secrets") or []:
            secret_value(world, sub, app, secret["name"])
    except Unreadable as exc:
        field = "configuration.secrets"
        raise refusal("app-failed", name=app["name"], field=field, why=exc) from exc


async def _wait_for(sub: Subscription, app: Body, name: str) -> None:
    """Wait until a new revision is ready, where the change of its app waits for that.

    Raises:
        Refused: It took too long; its replica boots on all the same.
    """
    patience = sub.knobs.patience_seconds
    if patience is None:
        return
    with anyio.move_on_after(patience):
        while True:
            if app["properties"].get("latestReadyRevisionName") == name:
                return
            await anyio.sleep(_LOOK_SECONDS)
    raise refusal("app-late", name=app["name"])


async def _begin(call: Call) -> Response:
    """Begin to start or to stop an app."""
    app = call.found()
    check_free(call)
    operation = begin(call, call.verb)
    app["properties"]["provisioningState"] = "InProgress"
    return Response(status_code=202, headers=location(operation))


async def _start_or_stop(world: World, sub: Subscription, operation: Operation, app: Body) -> None:
    """Let a stopped app scale by itself, and boot what was never ready; or end all its replicas."""
    starts, stopped = operation.work == "start", is_stopped(app)
    app["properties"]["runningStatus"] = "Running" if starts else "Stopped"
    if starts is not stopped:
        return
    ours, word = fleet.fleet_of(world, sub, app), "Starting" if starts else "Stopping"
    ours.say(f"ContainerApp{word}", f"{word} container app '{app['name']}'")
    if starts:
        ours.revive(set())
    else:
        await ours.end()


async def _list_secrets(call: Call) -> Body:
    """Give each secret with its value, which one of a vault has only while it can be read."""
    app, rows = call.found(), []
    for secret in app["properties"]["configuration"].get("secrets") or []:
        try:
            value = {"value": secret_value(call.world, call.sub, app, secret["name"])}
        except Unreadable:
            value = {}
        rows.append(secret | value)
    return {"value": rows}


async def _get_token(call: Call) -> Body:
    app, token, now = call.found(), secrets.token_urlsafe(24), time.time()
    call.sub.tokens = {one: at for one, at in call.sub.tokens.items() if at > now}
    call.sub.tokens[token] = now + _TOKEN_SECONDS
    return {
        **{key: app[key] for key in ("id", "name", "type", "location")},
        "properties": {"token": token, "expires": moment(now + _TOKEN_SECONDS)},
    }


def _parts(call: Call) -> tuple[Body, Body]:
    """Return the app and the revision that a path is about."""
    app, name = call.sub.resources[call.parent.lower()], call.names[1]
    revision = call.sub.get(f"{call.parent}/revisions/{name}")
    if revision is None:
        raise refusal("no-revision", name=name)
    return app, revision


def _shown_revision(_world: World, sub: Subscription, revision: Body) -> Body:
    """Tell how many replicas of it there are; what its state comes from has no key in the API."""
    app = sub.resources[revision["id"].lower().partition("/revisions/")[0]]
    latest = app["properties"].get("latestRevisionName") == revision["name"]
    properties = {
        **revision["properties"],
        "replicas": len(sub.living(app["id"], revision["name"])),
        "trafficWeight": 100 if latest else 0,
    }
    properties.pop("runningStateDetails", None)
    return {**{key: revision[key] for key in ("id", "name", "type")}, "properties": properties}


async def _switch(call: Call) -> Response:
    """Let a revision be there, which boots once and then scales; or end its replicas."""
    app, revision = _parts(call)
    ours = fleet.fleet_of(call.world, call.sub, app)
    if call.verb == "deactivate":
        await ours.cease(revision)
    elif not revision["properties"]["active"]:
        ours.begin(revision, asked_for=True)
    return Response()


async def _list_replicas(call: Call) -> Body:
    app, revision = _parts(call)
    rows = call.sub.living(app["id"], revision["name"])
    return {"value": [replica_body(call.world, revision, one) for one in rows]}


KINDS: Final = (
    kind_of(
        APP,
        fill=_app,
        shown=_shown,
        handlers={
            "start": _begin,
            "stop": _begin,
            "listSecrets": _list_secrets,
            "getAuthtoken": _get_token,
        },
        work={"put": _written, "start": _start_or_stop, "stop": _start_or_stop},
        ended=fleet.remove,
    ),
    kind_of(
        _REVISION,
        shown=_shown_revision,
        handlers={"activate": _switch, "deactivate": _switch},
    ),
    kind_of(f"{_REVISION}/replicas", handlers={"LIST": _list_replicas}),
)
