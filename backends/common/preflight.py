"""Questions of a preflight, the rows that their answers become, and what plans warn of."""

import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import httpx2

from core.endpoint import trusted
from core.errors import CloudTimeout, CloudUnavailable, InvalidArgument, OpsError
from core.records import Check, DeploymentSpec, Preflight, schedule_words, usd
from planner.price import HOURS_PER_MONTH, Price

_BACKENDS: Final = Path(__file__).parent.parent


@cache
def read_needs(folder: str) -> dict[str, Any]:
    """Return what a backend's `needs.toml` says, with the permissions of its calls as `names`.

    Its `methods` names the folder whose `permissions.toml` says what each call takes.
    """
    needs = _read(folder, "needs")
    taken = _read(needs.pop("methods"), "permissions")
    for row in needs["permissions"]:
        calls = row.pop("calls")
        row["names"] = list(dict.fromkeys(name for call in calls for name in taken[call]))
    return needs


def _read(folder: str, name: str) -> dict[str, Any]:
    return tomllib.loads((_BACKENDS / folder / f"{name}.toml").read_text(encoding="utf-8"))


class Answer(NamedTuple):
    """What was seen; without a fix, nothing has to be done."""

    passed: bool | None
    """None cannot be told."""
    detail: str
    fix: str = ""


class Question(NamedTuple):
    """Something that must be so for a deployment to work."""

    what: str
    ask: Callable[[], Awaitable[Answer | str]]
    """Returns what is well, in words alone, or an answer."""
    refusals: tuple[type[OpsError], ...] = ()
    """These are an answer as well: no."""


def unasked(cloud: str, exc: OpsError) -> Preflight:
    """Say that nobody can be asked, in one row, which says more than ten."""
    unknown = isinstance(exc, (CloudUnavailable, CloudTimeout))
    row = {
        "what": f"{cloud} knows who asks",
        "outcome": "unknown" if unknown else "fail",
        "detail": f"{exc.summary} {exc.cause}".strip(),
        "fix": exc.fix,
    }
    return Preflight(checks=(Check.model_validate(row),))


async def ask_all(questions: Sequence[Question], seconds: float) -> list[Check]:
    """Ask all of them side by side, and wait so long for their answers."""
    found: dict[str, Check] = {}

    async def answer(question: Question) -> None:
        found[question.what] = await ask_one(question)

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for question in questions:
                group.start_soon(answer, question)
    late = {
        "outcome": "unknown",
        "detail": f"No answer came within {seconds:.0f} s.",
        "fix": "Call the same tool again.",
    }
    return [
        found.get(one.what) or Check.model_validate({"what": one.what, **late}) for one in questions
    ]


def refusal(exc: OpsError) -> Answer:
    """Return what was refused as an answer: no."""
    return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)


async def ask_one(question: Question) -> Check:
    """Ask; whoever cannot answer leaves it unknown, with the reason."""
    try:
        said = await question.ask()
        passed, detail, fix = (True, said, "") if isinstance(said, str) else said
    except question.refusals as exc:
        passed, detail, fix = refusal(exc)
    except OpsError as exc:
        why = f"{exc.summary} {exc.cause}".strip()
        passed, detail, fix = None, f"It could not be looked at. {why}", exc.fix
    outcome = {True: "pass", False: "fail", None: "unknown"}[passed]
    row = {"what": question.what, "outcome": outcome, "detail": detail, "fix": fix}
    return Check.model_validate(row)


ECHO: Final = "https://api.ipify.org"
"""Answers with the address that it is asked from, as text; asked only where none is set."""
_SECONDS: Final = 5.0


def caller_ranges(said: Iterable[str], setting: str, why: str) -> tuple[str, ...]:
    """Give what a setting holds as CIDR ranges, each once; `why` says who takes no IPv6.

    Raises:
        InvalidArgument: One of them is none.
    """
    return tuple(dict.fromkeys(_range(one, setting, why) for one in said))


async def own_address(url: str, setting: str, *, own: bool) -> str:
    """Ask an echo for this machine's address, as a range; `own`: one that runs here.

    Raises:
        CloudUnavailable: It does not say.
    """
    try:
        async with httpx2.AsyncClient(
            timeout=_SECONDS, trust_env=not own, verify=trusted()
        ) as client:
            reply = await client.get(url)
        reply.raise_for_status()
        return f"{IPv4Address(reply.text.strip())}/32"
    except (httpx2.HTTPError, ValueError) as exc:
        raise CloudUnavailable(
            f"{url} does not tell which address this machine is seen with.",
            cause=str(exc) or type(exc).__name__,
            fix=f"Set {setting} to your addresses or ranges, separated by commas.",
        ) from exc


def _range(said: str, setting: str, why: str) -> str:
    try:
        return str(IPv4Network(said))
    except ValueError as exc:
        raise InvalidArgument(
            f"{setting} holds {said!r}: no IPv4 address, and no range of them.",
            cause=str(exc),
            fix="Write 203.0.113.7 for one, 203.0.113.0/24 for a range, whose last bits are 0;"
            f" {why}.",
        ) from exc


def unfinished(exc: OpsError, done: Sequence[str], left: Sequence[str]) -> OpsError:
    """Say the same as an error that ended the work, and how far it had come."""
    return type(exc)(
        f"Set-up ended after {len(done)} of {len(done) + len(left)} steps, at “{left[0]}”:"
        f" {exc.summary}",
        cause=exc.cause,
        fix=f"{exc.fix} What is done stays done: the next call goes on.",
        data={**exc.data, "done": list(done), "not_done": list(left)},
        next_steps=exc.next_steps,
    )


def price_doubts(costs: Price) -> Iterator[str]:
    """Say how sure the price is, if it is not."""
    if costs.usd_per_hour is None:
        yield "What it costs is not known."
    elif costs.disagree:
        yield f"Sources disagree on the price: {costs.short}."
    elif len(costs.quotes) == 1:
        yield f"One source alone names the price: {costs}."


def always_on(spec: DeploymentSpec, costs: Price, *, called: str) -> str:
    """Say what replicas that never sleep cost; `called` as their cloud calls them."""
    replicas, ends = spec.min_replicas, spec.ttl_minutes or spec.max_usd
    when = "until its end" if ends else "all the time"
    if costs.usd_per_hour is None:
        return f"{replicas} {called} run {when}, asked or not, at a price nobody knows."
    hourly = replicas * costs.usd_per_hour
    bill = f"${hourly:.2f} an hour" if ends else f"${hourly * HOURS_PER_MONTH:,.0f} a month"
    return (
        f"min_replicas={replicas} runs {when}, asked or not: {bill};"
        " 0 costs nothing while nobody asks."
    )


def by_schedule(spec: DeploymentSpec, costs: Price, *, idle_minutes: float) -> Iterator[str]:
    """Say what a schedule comes to; nothing of one that there is not."""
    highest = costs.usd_per_hour_highest
    if words := schedule_words(spec, costs.usd_per_hour, highest):
        yield (
            f"By its schedule it is {words}, asked or not. A call at another time wakes it as well,"
            f" with a cold boot, and it stays about {idle_minutes:.0f} minutes after the last call"
            f" and after each end{_tails(spec, highest, idle_minutes)}. Each time begins with"
            " a boot: let it begin that much earlier."
        )
        if spec.max_usd:
            yield (
                "max_usd counts as if it ran all the time, also outside of its schedule: it ends no"
                " later than the money lasts, and may end before it is spent."
            )


def _tails(spec: DeploymentSpec, usd_per_hour: float | None, idle_minutes: float) -> str:
    """Say what staying after each end comes to."""
    if spec.times is None or not usd_per_hour:
        return ""
    hours = len(spec.times.spans) * idle_minutes / 60
    return f" (up to {usd(hours * usd_per_hour * spec.warm_replicas)} a week more)"


def tagged(image: str) -> Iterator[str]:
    """Say what an image without a digest may become."""
    if "@sha256:" not in image:
        yield (
            f"{image} is named by a tag, which may come to mean another image; it"
            " is pinned by its digest when it is deployed, if its registry can be asked."
        )
