"""A human's yes, asked for in whichever way their client can, and progress told meanwhile."""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from fastmcp.server.context import Context
from fastmcp.server.dependencies import get_context
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
)

from core.errors import (
    Asleep,
    Busy,
    Cancelled,
    ConfirmationRequired,
    ConfirmationStale,
    HostError,
    NextStep,
)
from core.journal import TOKEN_MINUTES
from core.redaction import in_quotes, one_line, redact
from core.reply import note
from operations import agreement, resolve
from operations.agreement import Preview
from operations.resolve import Found
from operations.runtime import Runtime
from tools.gate import ENDS_COST, a_humans_time
from tools.surface import AGREED, GIVEN, HumanAgreed, HumanNeeded

_EVERY_SECONDS: Final = 5.0


class _Beat:
    """Passes one message on every few seconds, or at once when it changes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._last, self._said, self._count = -math.inf, "", 0

    async def tell(self, message: str) -> None:
        now = anyio.current_time()
        if message == self._said and now - self._last < _EVERY_SECONDS:
            return
        self._last, self._said, self._count = now, message, self._count + 1
        await self._ctx.report_progress(self._count, None, one_line(message, 200))


def saying(ctx: Context) -> Callable[[str], Awaitable[None]]:
    """Tell how far something is."""
    return _Beat(ctx).tell


_KEY: Final = "confirm"
_INPUT_REQUIRED_SINCE: Final = "2026-07-28"
"""From this protocol on a server cannot ask; it returns what it needs to know."""
_UNASKED: Final = frozenset((INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS))
"""Errors of a client that refuses the question itself, so that no human has seen it. INTERNAL_ERROR
is none: the SDKs of Python and TypeScript send it for whatever a handler raises, a no as well."""

_SCHEMA: Final = {
    "type": "object",
    "required": [_KEY],
    "properties": {_KEY: {"type": "boolean", "title": "Go ahead"}},
}


async def agree(rt: Runtime, preview: Preview | None, token: str | None) -> None:
    """Go on only with a human's yes; None needs none.

    Raises:
        ConfirmationRequired: Nobody can be asked; the error carries a preview and, where the
            policy allows it, a token.
        ConfirmationStale: The token is not good for this, or not any more.
        Cancelled: The human said no, or the client answered with an error that may be a no.
        HostError: No token can be kept, and what is wanted ends no cost.
        HumanNeeded: The client asks its human and calls again.
        HumanAgreed: The human said yes; the tool begins anew.
    """
    policy = rt.settings.confirm
    if preview is None or policy == "never" or AGREED.get() == preview.bound_to:
        return
    ctx = get_context()
    if policy != "token" and _can_ask(ctx) and await _asked(rt, ctx, preview):
        return
    if policy == "deny":
        raise ConfirmationRequired(
            f"{preview.what}? This server does it only when a human can be asked.",
            fix="Use a client that can ask (elicitation), or start the server with CONFIRM=ask.",
        )
    _redeem(rt, preview, token)


def _can_ask(ctx: Context) -> bool:
    """Whether its human can fill in a form: who names no mode means that one."""
    params = ctx.session.client_params
    asks = params.capabilities.elicitation if params else None
    return asks is not None and (asks.form is not None or asks.url is None)


async def _asked(rt: Runtime, ctx: Context, preview: Preview) -> bool:
    """Ask; False where the client says that it can and then cannot."""
    question = str(redact(preview.question, rt.secrets))
    request = ctx.request_context
    if request and request.protocol_version >= _INPUT_REQUIRED_SINCE:
        answer = (ctx.input_responses or {}).get(_KEY)
        if answer is None or ctx.request_state != preview.bound_to:
            form = ElicitRequestFormParams(message=question, requested_schema=_SCHEMA)
            asked = ElicitRequest(method="elicitation/create", params=form)
            raise HumanNeeded(
                InputRequiredResult(
                    result_type="input_required",
                    input_requests={_KEY: asked},
                    request_state=preview.bound_to,
                )
            )
        _require_yes(preview, getattr(answer, "action", ""), getattr(answer, "content", None))
        return True
    try:
        with a_humans_time():  # how long they think does not count as the call's time
            heard = await ctx.session.elicit_form(question, _SCHEMA, ctx.request_id)
    except MCPError as exc:
        said = f"the client answered {in_quotes(exc, 100)}"
        if exc.code not in _UNASKED:
            raise Cancelled(
                f"Not confirmed: {preview.what}. Nothing was changed: {said}.",
                fix="Ask again if it is wanted after all. Where this client cannot ask, its owner"
                " may start the server with CONFIRM=token.",
            ) from exc
        note(f"Nobody could be asked: {said}.")
        return False
    _require_yes(preview, heard.action, heard.content)
    raise HumanAgreed(preview.bound_to)


def _require_yes(preview: Preview, action: str, content: Mapping[str, Any] | None) -> None:
    if action != "accept" or (content or {}).get(_KEY) is not True:
        raise Cancelled(
            f"Not confirmed: {preview.what}. Nothing was changed.",
            fix="Ask again if it is wanted after all.",
        )


def _redeem(rt: Runtime, preview: Preview, token: str | None) -> None:
    if token and _is_good(rt, preview, token):
        return
    minted = _minted(rt, preview)
    meant = {"target": preview.target, "name": preview.name}
    meant = {argument: value for argument, value in meant.items() if value}
    again = {**GIVEN.get(), **meant, **preview.again, "confirm": minted}
    shown = {**preview.model_dump(exclude={"again", "bound_to"}), "confirm": minted}
    error = ConfirmationStale if token else ConfirmationRequired
    why = "That token is not good for this any more. " if token else ""
    raise error(
        f"{why}Not done yet: {preview.what}.",
        fix=f"Show this to the user; on their yes call {preview.tool} again with the same "
        f"arguments and confirm='{minted}' (once, within {TOKEN_MINUTES} minutes).",
        data=shown,
        next_steps=(NextStep(preview.tool, again),),
    )


def _is_good(rt: Runtime, preview: Preview, token: str) -> bool:
    """Use it up, wherever it is kept; what cannot be used up is good for nothing."""
    if rt.held.redeem(token, preview.bound_to):
        return True
    try:
        return rt.stage.journal.redeem(token, preview.bound_to)
    except (Busy, HostError):
        return False


def _minted(rt: Runtime, preview: Preview) -> str:
    try:
        return rt.stage.journal.mint(preview.bound_to)
    except (Busy, HostError) as exc:
        if preview.tool not in ENDS_COST:
            raise
        note(
            f"{exc.summary} {exc.fix} Until then the token is in this server's memory and ends"
            " with it, and what is done may not be written down."
        )
        return rt.held.mint(preview.bound_to)


async def _wake_words(rt: Runtime, found: Found) -> str:
    from operations.explain import wake_words  # noqa: PLC0415  the planner loads slowly

    return await wake_words(rt, found)


async def awake(rt: Runtime, found: Found, tool: str, *, wake: bool, confirm: str | None) -> Found:
    """Give a deployment that can be asked now; one that sleeps is woken if `wake` says so.

    The next step of a refusal calls `tool` with what was given, and says to wake it.

    Raises:
        Asleep: It sleeps and nobody said to wake it.
        ConfirmationError: Nobody has agreed to what that costs.
        NotReady: It is being woken and has not answered yet.
        OpsError: It was asked, and refused or failed.
    """
    if wake:
        shown = agreement.to_wake(found, tool)
        if shown and (words := await _wake_words(rt, found)):
            shown = shown.model_copy(update={"what": f"{shown.what}; {words}"})
        await agree(rt, shown, confirm)
    try:
        return await resolve.awake(rt, found, wake=wake)
    except Asleep as exc:
        if words := await _wake_words(rt, found):
            exc.fix = f"{exc.fix} {words[0].upper()}{words[1:]}."
        here = {"target": found.deployment.target, "name": found.name}
        exc.next_steps = (NextStep(tool, {**GIVEN.get(), **here, "wake": True}),)
        raise
