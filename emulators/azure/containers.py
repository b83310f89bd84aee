"""What an app's container runs here: the simulated engine, its secrets, its mounted shares."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from core.errors import InvalidArgument
from emulators.azure import fleet_shapes as shapes
from emulators.azure.containers_shares import local_weights
from emulators.azure.fleet_shapes import Body
from emulators.azure.profiles_known import A100, T4
from emulators.azure.roles import may
from emulators.azure.roles_known import READ_SECRET
from emulators.azure.state import Subscription, World
from emulators.azure.vaults_arm import vault_named
from emulators.common.guard import guard_of
from emulators.common.programs import CannotStart, Program, environment, program, served
from planner.boot import file_bytes
from planner.model import catalog_shape

ACCELERATORS: Final = {A100: "a100-80", T4: "t4"}
"""The GPU of each profile type, by the name that it has here."""


_DOCKER_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")


class Unreadable(CannotStart):
    """An app's secret stands for nothing that its identity may read."""


def program_of(world: World, sub: Subscription, app: Body, revision: Body) -> Program:
    """Say what is to be run; every call takes a port of its own.

    Raises:
        CannotStart: The image has no such program, or a share cannot be mounted.
        Unreadable: One of its secrets.
    """
    container, guard = shapes.container_of(revision), None
    if others := shapes.template_of(revision)["containers"][1:]:
        (other,) = others
        started = [*(other.get("command") or ()), *(other.get("args") or ())]
        guard = guard_of(started, {one["name"]: one.get("value") or "" for one in other["env"]})
    words = served(container.get("command") or (), container.get("args") or ())
    return program(
        words,
        {**_environment(world, sub, app, revision), **_full_disk(sub, container, words)},
        port=shapes.port_of(app),
        here=local_weights(world, sub, app, revision),
        guard=guard,
    )


def check_secrets(world: World, sub: Subscription, app: Body) -> None:
    """See whether every secret of an app can be read, used or not.

    Raises:
        Unreadable: One cannot.
    """
    for secret in _secrets(app):
        secret_value(world, sub, app, str(secret["name"]))


def pulls(world: World, sub: Subscription, app: Body, image: str) -> bool:
    """Whether an image is to be had: from Docker Hub, when too many ask, with an account alone."""
    first, slash, _ = image.partition("/")
    elsewhere = slash and ("." in first or ":" in first) and first not in _DOCKER_HUB
    if elsewhere or not sub.knobs.docker_hub_limited:
        return True
    registries = (app["properties"].get("configuration") or {}).get("registries") or []
    account = next((one for one in registries if one.get("server") in _DOCKER_HUB), None)
    try:
        return bool(account and secret_value(world, sub, app, account["passwordSecretRef"]))
    except Unreadable:
        return False


def secret_value(world: World, sub: Subscription, app: Body, name: str) -> str:
    """Give what an app's secret stands for.

    Raises:
        Unreadable: Nothing, or its identity may not read it.
    """
    found = next((one for one in _secrets(app) if one["name"] == name), None)
    if found is None:
        raise Unreadable(f"SecretRef '{name}' defined for container is not found.")
    if not found.get("keyVaultUrl"):
        return str(found.get("value") or "")
    try:
        return _kept(world, sub, app, found)
    except _Lost as exc:
        raise Unreadable(
            f"Unable to get value using Managed identity {found.get('identity') or 'system'} for"
            f" secret {name}. Error: unable to fetch secret '{name}' using Managed identity"
            f" '{found.get('identity') or 'system'}': {exc}"
        ) from exc


class _Lost(Exception):
    """The vault does not give it."""


def _secrets(app: Body) -> list[Body]:
    return (app["properties"].get("configuration") or {}).get("secrets") or []


def _kept(world: World, sub: Subscription, app: Body, secret: Body) -> str:
    """Read a vault's secret as the app's identity does."""
    vault_name, name, version = _named(str(secret["keyVaultUrl"]))
    found = vault_named(world, vault_name)
    if found is None:
        raise _Lost(f"lookup {vault_name}.vault.azure.net: no such host")
    owner, vault = found
    principal = _principal(sub, app, str(secret.get("identity") or ""))
    if not may(owner, principal, READ_SECRET, f"{vault['id']}/secrets/{name}"):
        raise _Lost(
            "RESPONSE 403: 403 Forbidden. ERROR CODE: Forbidden. Caller is not authorized to"
            f" perform action on resource {vault['id']}/secrets/{name}. ForbiddenByRbac"
        )
    held = owner.vaults[vault_name].secrets.get(name) if vault_name in owner.vaults else None
    there = held.versions if held and held.deleted is None else []
    chosen = [one for one in there if not version or one["id"].endswith(f"/{version}")]
    if not chosen:
        raise _Lost(f"RESPONSE 404: 404 Not Found. ERROR CODE: SecretNotFound: {name}")
    return str(chosen[-1]["value"])


def _named(url: str) -> tuple[str, str, str]:
    """Give vault, secret and version that a URL names, in lower case; here or in the real world."""
    where = urlsplit(url.lower())
    parts = [part for part in where.path.split("/") if part]
    if parts[:1] == ["vaults"]:
        parts = parts[1:]
    else:
        parts = [(where.hostname or "").partition(".")[0], *parts]
    vault, _, name, version, *_ = [*parts, "", "", "", ""]
    return vault, name, version


def _principal(sub: Subscription, app: Body, identity: str) -> str:
    """Give the object id of an identity that the app has."""
    given = {name.lower() for name in (app.get("identity") or {}).get("userAssignedIdentities", {})}
    body = sub.get(identity) if identity.lower() in given else None
    if body is None:
        raise _Lost("the app does not have that identity")
    return str(body["properties"]["principalId"])


def _full_disk(sub: Subscription, container: Body, words: Sequence[str]) -> dict[str, str]:
    """Let files of the Hub that lie on no volume fill the container's disk."""
    env = {one["name"]: one.get("value") or "" for one in container.get("env") or []}
    roots = [f"{one['mountPath']}".rstrip("/") for one in container.get("volumeMounts") or []]
    home = env.get("HF_HOME", "")
    kept = env.get("HF_HUB_OFFLINE") == "1" or any(
        f"{home}/".startswith(f"{root}/") for root in roots
    )
    if sub.knobs.disk_gib is None or kept or not words:
        return {}
    try:
        needed = file_bytes(catalog_shape(words[0]))
    except InvalidArgument:
        return {}
    return {"SIMULATED_ENGINE_FAIL": "disk-full"} if needed > sub.knobs.disk_gib * 2**30 else {}


def _environment(world: World, sub: Subscription, app: Body, revision: Body) -> dict[str, str]:
    knobs = sub.knobs
    env = environment(
        boot_seconds=knobs.boot_seconds,
        phases=knobs.engine_seconds,
        more=knobs.engine_environment,
        accelerator=ACCELERATORS.get(shapes.profile_type_of(sub, app), ""),
    )
    for variable in shapes.container_of(revision).get("env") or []:
        reference = variable.get("secretRef")
        value = secret_value(world, sub, app, reference) if reference else variable.get("value")
        env[variable["name"]] = str(value or "")
    return env
