"""What a subscription needs once, in the order in which it can be made."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import anyio

from backends.aca import container, environment, plan, resources, secrets, storage
from backends.aca.resources import ENVIRONMENT, REGISTERING, ROLE, Stand, Step, stand_of
from backends.aca.site import CONSUMPTION, HF_SECRET, SHARE, Site
from backends.base import Setup, SetupStep
from backends.common.concurrency import in_time, side_by_side
from backends.common.preflight import unfinished
from core.errors import ConcurrentChange, NotFound, OpsError
from core.reply import note

ACCOUNT: Final = "account"


def steps(site: Site, *, share: bool, named: str = SHARE) -> tuple[Step, ...]:
    """Give them; `share` is for weights on a file share, `named` is which.

    Raises:
        NotConfigured: No subscription is named.
    """
    _named = site.clients.subscription
    return (*_always(site, share=share), *(_storage(site, named) if share else ()))


def _always(site: Site, *, share: bool) -> Iterator[Step]:
    names, ground = environment.provider_names(share=share), site.ground
    yield Step(
        "providers",
        f"Providers: {', '.join(names)}",
        resources.az_providers(ground, names),
        partial(environment.providers_stand, site, names),
        partial(environment.register, site, names),
        phase=REGISTERING,
    )
    yield Step(
        "group",
        f"The resource group {ground.resource_group}",
        resources.az_group(ground),
        partial(environment.group_stand, site),
        partial(environment.make_group, site),
        after=("providers",),
    )
    yield from _environment(site)
    yield from _vault(site)


def _environment(site: Site) -> Iterator[Step]:
    ground, gpu = site.ground, container.gpu_of(site.target)
    guid = site.settings.azure_log_analytics_workspace_id
    yield Step(
        "workspace",
        f"The workspace {guid or ground.workspace} for logs",
        resources.az_workspace(ground),
        partial(_workspace_stand, site),
        partial(environment.make_workspace, site),
        after=("group",),
    )
    yield Step(
        "environment",
        f"The environment {ground.environment} with {CONSUMPTION} and {gpu.profile_type}",
        resources.az_environment(ground, gpu.profile, gpu.profile_type, guid),
        partial(environment.environment_stand, site),
        partial(environment.make_environment, site),
        after=("workspace",),
        phase=ENVIRONMENT,
    )


def _vault(site: Site) -> Iterator[Step]:
    ground = site.ground
    yield Step(
        "identity",
        f"The identity {ground.identity}, as which apps run",
        resources.az_identity(ground),
        partial(environment.identity_stand, site),
        partial(environment.make_identity, site),
        after=("group",),
    )
    yield Step(
        "vault",
        f"The Key Vault {ground.vault}, read by roles",
        resources.az_vault(ground),
        partial(secrets.vault_stand, site),
        partial(secrets.make_vault, site),
        after=("identity",),
    )
    reader, writer = environment.SECRETS_USER, environment.SECRETS_OFFICER
    yield _role(site, reader, ground.vault_id, "vault", who=ground.identity)
    yield _role(site, writer, ground.vault_id, "vault")
    yield Step(
        "answer",
        f"The Key Vault {ground.vault} answers you",
        resources.az_list_secrets(ground),
        partial(secrets.does_vault_answer, site),
        _nothing,
        after=("vault", f"role {reader}", f"role {writer}"),
        phase=ROLE,
    )


def _storage(site: Site, share: str) -> Iterator[Step]:
    ground, size = site.ground, container.rules().share.quota_gib
    yield Step(
        ACCOUNT,
        f"The storage account {ground.storage_account} for weights, on SSD",
        resources.az_storage_account(ground),
        partial(storage.account_stand, site),
        partial(storage.make_account, site),
        after=("group",),
    )
    yield _role(site, environment.SHARE_READER, ground.storage_id, "account")
    yield Step(
        "share",
        f"The share {share} ({size} GiB)",
        resources.az_share(ground, share),
        partial(storage.share_stand, site, share),
        partial(storage.make_share, site, share),
        after=("account",),
        usd_per_month=container.rules().share.usd_per_month[-1],
    )
    yield from (_link(site, link) for link in storage.links_of(share))


def _link(site: Site, link: storage.Link) -> Step:
    return Step(
        f"link {link.name}",
        f"The environment's link {link.name} to the share {link.share} ({link.mode})",
        resources.az_link(site.ground, link.name, link.share, read_only=link.read_only),
        partial(storage.link_stand, site, link),
        partial(storage.make_link, site, link),
        after=("share", "environment"),
    )


def _role(site: Site, role: str, scope: str, needed: str, *, who: str | None = None) -> Step:
    command = (
        resources.az_role(role, scope, resources.az_principal(site.ground), kind="ServicePrincipal")
        if who
        else resources.az_role(role, scope, resources.ME, kind="User")
    )
    return Step(
        f"role {role}",
        f"The role {environment.TITLES[role]} of {who or 'yours'} on {scope.rsplit('/', 1)[-1]}",
        command,
        partial(_role_stand, site, scope, role, identity=bool(who)),
        partial(_assign, site, scope, role, identity=bool(who)),
        after=(needed,),
        phase=ROLE,
    )


async def _role_stand(site: Site, scope: str, role: str, *, identity: bool) -> Stand:
    return await environment.role_stand(
        site, scope, role, await _principal(site, identity=identity)
    )


async def _assign(site: Site, scope: str, role: str, *, identity: bool) -> None:
    principal = await _principal(site, identity=identity)
    if principal:
        kind = "ServicePrincipal" if identity else None
        await environment.assign(site, scope, role, principal, kind=kind)


async def _principal(site: Site, *, identity: bool) -> str | None:
    if not identity:
        return await site.clients.caller()
    found = await environment.find_identity(site)
    return found.principal_id if found else None


async def _workspace_stand(site: Site) -> Stand:
    """Say whether it is there; an environment that is there has its own place for logs."""
    stand = await environment.workspace_stand(site)
    if stand is Stand.ABSENT and await environment.find_environment(site):
        return Stand.THERE
    return stand


async def _nothing() -> None:
    """Let time go by."""


SECONDS: Final = 20.0
"""No call takes longer."""
PATIENCE_SECONDS: Final = 4.0
"""What is under way is waited for this long: most of it takes seconds, an environment minutes."""
_FIRST_LOOK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0

Stands = dict[str, Stand]


async def advance(site: Site, *, share: bool, named: str = SHARE) -> str | None:
    """Make what is missing; give the phase that it waits in, None when all is there.

    Nothing is made twice, what is there is left as it is, and nothing is ever taken away but an
    environment of ours that failed while nothing was in it. `share` is for weights on a file share,
    `named` is which: only our own is made.

    Raises:
        NotConfigured: No subscription is named.
        CloudError: A step failed; those before it stay done.
    """
    return await bring_up(steps(site, share=share, named=named), {})


async def bring_up(wanted: Sequence[Step], stands: Stands) -> str | None:
    """Make these steps; `stands` tells afterwards, and after an error, how far each has come."""
    again = "Call the same tool again: it goes on."
    with in_time("Azure", "make what deployments stand on", SECONDS, fix=again):
        until, pause = anyio.current_time() + PATIENCE_SECONDS, _FIRST_LOOK_SECONDS
        while waits := await _round(wanted, stands):
            if anyio.current_time() + pause > until:
                return waits
            await anyio.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS)
    return None


async def _round(wanted: Sequence[Step], stands: Stands) -> str | None:
    """Look at what is not there yet, and make what can be made; give what is waited for."""
    left = [step for step in wanted if stands.get(step.name) is not Stand.THERE]
    seen = await side_by_side([partial(stand_of, step) for step in left])
    stands.update({step.name: stand for step, stand in zip(left, seen, strict=True)})
    for step in left:
        if stands[step.name] is Stand.ABSENT and _ready(step, stands):
            stands[step.name] = await _begun(step)
    return next((step.phase for step in left if stands[step.name] is not Stand.THERE), None)


def _ready(step: Step, stands: Stands) -> bool:
    return all(stands[name] is Stand.THERE for name in step.after)


async def _begun(step: Step) -> Stand:
    """Make one; whether somebody else does the same at the same time is all one."""
    try:
        await step.make()
    except ConcurrentChange:
        stand = await stand_of(step)
        if stand is Stand.ABSENT:
            raise
        return stand
    stand = await stand_of(step)
    return Stand.UNDER_WAY if stand is Stand.ABSENT else stand


_LOOKING_SECONDS: Final = 12.0


async def read_setup(site: Site) -> Setup:
    """Say of each step whether it was seen to be done; what is under way is not, and says so.

    Raises:
        NotConfigured: No subscription is named.
        CloudError: Azure does not tell.
    """
    wanted = _steps(site)
    with in_time("Azure", "see what is set up", _LOOKING_SECONDS, fix="Call the same tool again."):
        stands = await side_by_side([partial(stand_of, step) for step in wanted])
    return Setup(
        steps=tuple(_told(step, stand) for step, stand in zip(wanted, stands, strict=True))
    )


async def make_setup(site: Site) -> Setup:
    """Begin what is not there, in order; what comes back was read back.

    Raises:
        NotConfigured: No subscription is named.
        CloudError: A step failed; the error tells which are done and which are not.
    """
    wanted, stands = _steps(site), Stands()
    try:
        await bring_up(wanted, stands)
    except OpsError as exc:
        forbidden = plan.is_policy(exc) and stands.get(ACCOUNT) is not Stand.THERE
        if not forbidden:
            raise _unfinished(exc, wanted, stands) from exc
        note(f"There will be no file share. {exc.summary} {exc.cause} {exc.fix}")
        rest = (*steps(site, share=False), *_as_set(site))
        try:
            await bring_up(rest, stands)
        except OpsError as other:
            raise _unfinished(other, rest, stands) from other
    return await read_setup(site)


def _steps(site: Site) -> tuple[Step, ...]:
    return (*steps(site, share=True), *_as_set(site))


def _as_set(site: Site) -> Iterator[Step]:
    token = site.settings.hf_token
    if token:
        yield Step(
            "token",
            f"The secret {HF_SECRET} with your HF_TOKEN, readable by {site.ground.identity}",
            f'printf %s "$HF_TOKEN" | {resources.az_keep_secret(site.ground, HF_SECRET)}',
            partial(_token_stand, site, token.get_secret_value()),
            partial(secrets.keep, site, HF_SECRET, token),
            after=("answer",),
        )


async def _token_stand(site: Site, token: str) -> Stand:
    if await secrets.does_vault_answer(site) is not Stand.THERE:
        return Stand.ABSENT
    try:
        kept = await secrets.read(site, HF_SECRET)
    except NotFound:
        return Stand.ABSENT
    same = kept.get_secret_value() == "".join(token.split())
    return Stand.THERE if same else Stand.ABSENT


def _told(step: Step, stand: Stand) -> SetupStep:
    going = f" (Azure is at it: {step.phase})" if stand is Stand.UNDER_WAY else ""
    return SetupStep(
        what=f"{step.what}{going}",
        done=stand is Stand.THERE,
        command=step.command,
        usd_per_month=step.usd_per_month,
    )


def _unfinished(exc: OpsError, wanted: Sequence[Step], stands: Stands) -> OpsError:
    done = [step.what for step in wanted if stands.get(step.name) is Stand.THERE]
    left = [step.what for step in wanted if step.what not in done]
    return unfinished(exc, done, left)
