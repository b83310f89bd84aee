"""What a subscription needs once, looked at and made: every step can be done again and again."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from backends.aca import az, ground_vault, policies, secrets
from backends.aca.ground import Stands, bring_up
from backends.aca.ground_steps import ACCOUNT, steps
from backends.aca.names import HF_SECRET
from backends.aca.site import Site
from backends.aca.stands import Stand, Step, stand_of
from backends.base import Setup, SetupStep
from backends.common.concurrency import in_time, side_by_side
from backends.common.preflight import unfinished
from core.errors import NotFound, OpsError
from core.reply import note

_LOOKING_SECONDS: Final = 12.0


async def look(site: Site) -> Setup:
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


async def make(site: Site) -> Setup:
    """Begin what is not there, in order; what comes back was read back.

    Raises:
        NotConfigured: No subscription is named.
        CloudError: A step failed; the error tells which are done and which are not.
    """
    wanted, stands = _steps(site), Stands()
    try:
        await bring_up(wanted, stands)
    except OpsError as exc:
        forbidden = policies.is_policy(exc) and stands.get(ACCOUNT) is not Stand.THERE
        if not forbidden:
            raise _unfinished(exc, wanted, stands) from exc
        note(f"There will be no file share. {exc.summary} {exc.cause} {exc.fix}")
        rest = (*steps(site, share=False), *_as_set(site))
        try:
            await bring_up(rest, stands)
        except OpsError as other:
            raise _unfinished(other, rest, stands) from other
    return await look(site)


def _steps(site: Site) -> tuple[Step, ...]:
    return (*steps(site, share=True), *_as_set(site))


def _as_set(site: Site) -> Iterator[Step]:
    token = site.settings.hf_token
    if token:
        yield Step(
            "token",
            f"The secret {HF_SECRET} with your HF_TOKEN, readable by {site.ground.identity}",
            f'printf %s "$HF_TOKEN" | {az.secret(site.ground, HF_SECRET)}',
            partial(_token_stand, site, token.get_secret_value()),
            partial(secrets.keep, site, HF_SECRET, token),
            after=("answer",),
        )


async def _token_stand(site: Site, token: str) -> Stand:
    if await ground_vault.answers(site) is not Stand.THERE:
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
