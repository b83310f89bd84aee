"""What only a real cloud can prove, tried on one and written down: `make first-contact`.

Looks first, without changing anything; then asks, with the price, and deploys, tries and removes.
The report names no project, subscription, address or person, so that it can be sent to anybody.
"""

import contextlib
import platform
import re
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
import httpx2
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

from core import PRODUCT, VERSION
from core.environment import ROOT
from core.errors import Unsupported
from core.processes import run
from core.records import Record
from core.redaction import redact
from core.settings import Settings
from demo import Story, client_of
from operations.runtime import Stage

Outcome = Literal["pass", "fail", "not known"]

NAME: Final = "first-contact"
MODEL: Final = "google/gemma-4-E2B-it"
TTL_MINUTES: Final = 60
_LONGEST_SECONDS: Final = 45 * 60
"""That a boot is waited for; the search for a TPU takes as long as it takes, up to this."""
_CHAT: Final = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
_SHUT: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "POST /invocations": _CHAT,
    "POST /v1/chat/completions": _CHAT,
    "POST /v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "POST /tokenize": {"prompt": "Hi"},
    "POST /detokenize": {"tokens": [1]},
    "POST /pooling": {"input": "Hi"},
    "POST /scale_elastic_ep": {},
    **dict.fromkeys(("GET /v1/models", "GET /metrics", "GET /openapi.json", "GET /docs")),
}
"""What must not answer whoever has no key."""


class Contact(Story):
    """One target, looked at and, if its owner agrees, deployed to."""

    def __init__(self, client: Client[Any], target: str, *, is_rehearsal: bool) -> None:
        super().__init__(client)
        self.target = target
        self.is_rehearsal = is_rehearsal
        self.where: dict[str, Any] = {"target": target, "name": NAME}
        self.answers: dict[str, Mapping[str, Any]] = {}
        """The last answer of each tool, in full."""
        self.boot_seconds: float | None = None
        self.door: dict[str, int | str] = {}
        """What each way in answered to somebody without a key."""
        self.snippet: tuple[int, str] | None = None
        """How the printed command ended, and what it printed."""

    async def call(self, tool: str, *, lines: int = 8, **arguments: Any) -> dict[str, Any]:
        """Call a tool and keep its whole answer."""
        answer = await super().call(tool, lines=lines, detail="full", **arguments)
        self.answers[tool] = answer
        return answer

    async def look(self) -> None:
        """Ask what can be asked without changing anything."""
        await self.call("list_targets")
        wish: dict[str, Any] = {"model": MODEL, "target": self.target, "max_model_len": 8192}
        await self.call("plan_deployment", **wish, check=True)
        await self.call("check_gpu_quotas", target=self.target)
        if self.target.startswith("tpu"):
            await self.call("get_zones_with_available_quota", target=self.target)

    async def live(self) -> None:
        """Deploy, try everything, and remove it whatever happens."""
        wish: dict[str, Any] = {"model": MODEL, "max_model_len": 8192, "ttl_minutes": TTL_MINUTES}
        began = time.monotonic()
        try:
            made = await self.call("deploy_vllm", **self.where, **wish)
            if made.get("ok") and await self._settles("ready"):
                self.boot_seconds = time.monotonic() - began
                await self._try_it()
        finally:
            with anyio.CancelScope(shield=True):
                await self._remove()

    async def _try_it(self) -> None:
        await self.call("verify_model_health", **self.where, deep=True)
        found = await self.call("get_endpoint", **self.where)
        await self._knock(str(found.get("data", {}).get("url", "")))
        await self._type(found.get("data", {}))
        await self.call("query_gemma4_with_stats", **self.where, prompt="What is Gemma?")
        await self.call("get_metrics", **self.where)
        await self.call("get_logs", **self.where)
        await self.call("update_vllm_scaling", **self.where, ttl_minutes=TTL_MINUTES)
        if not self.target.startswith("tpu"):
            await self.call("stop_vllm", **self.where)
            await self._settles("stopped")

    async def _knock(self, url: str) -> None:
        """Ask every way in without a key; whose certificate answers does not matter for that."""
        async with httpx2.AsyncClient(base_url=url, verify=False, timeout=30) as client:
            for way, body in _SHUT.items():
                method, _, path = way.partition(" ")
                try:
                    answer = await client.request(method, path, json=body)
                except httpx2.HTTPError as exc:
                    self.door[way] = type(exc).__name__
                else:
                    self.door[way] = answer.status_code

    async def _type(self, endpoint: Mapping[str, Any]) -> None:
        """Run the printed command as a person would who copies it."""
        command = endpoint.get("curl")
        if self.is_rehearsal or not command:
            return
        with contextlib.suppress(TimeoutError):
            done = await run(("bash", "-c", str(command)), timeout=120)
            self.snippet = done.returncode, f"{done.stdout[-300:]} {done.stderr[-300:]}"

    async def _remove(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _LONGEST_SECONDS:
            gone = await self.call("destroy_vllm", **self.where)
            if not gone.get("ok") or gone.get("data", {}).get("gone"):
                break
        await self.call("list_deployments", target=self.target)
        await self.call("get_system_status", target=self.target, leftovers=True)

    async def _settles(self, wanted: str) -> bool:
        is_so = await self.settled(wanted, seconds=_LONGEST_SECONDS, **self.where)
        self.answers[f"status {wanted}"] = self.answers["status_vllm"]
        return is_so


def planned(contact: Contact, patterns: Sequence[str]) -> tuple[Outcome, str]:
    """Judge by the plan's checks whose sentence matches one of these patterns."""
    checks = contact.answers.get("plan_deployment", {}).get("data", {}).get("checks", ())
    found = [one for one in checks if any(re.search(p, one["what"]) for p in patterns)]
    if not found:
        return "not known", "The plan has no such check."
    text = "; ".join(f"{c['what']}: {c['outcome']}. {c['detail']}" for c in found)
    outcomes = {check["outcome"] for check in found}
    if "fail" in outcomes:
        return "fail", text
    return ("pass" if outcomes == {"pass"} else "not known"), text


def booted(contact: Contact) -> tuple[Outcome, str]:
    """Judge the boot by what the plan foresaw."""
    foreseen = contact.answers.get("plan_deployment", {}).get("data", {}).get("foreseen") or {}
    planned = str(foreseen.get("boot_seconds", "not known"))
    if contact.boot_seconds is None:
        last = contact.answers.get("status ready") or contact.answers.get("deploy_vllm")
        return ("fail", str(last.get("summary"))) if last else ("not known", "It was not deployed.")
    took = f"Ready after {contact.boot_seconds:.0f} s; planned: {planned} s."
    most = re.search(r"-([0-9.]+)\)", planned)
    late = most and contact.boot_seconds > 1.5 * float(most[1])
    return ("fail", f"{took} That is far over the plan.") if late else ("pass", took)


def shut(contact: Contact) -> tuple[Outcome, str]:
    """Judge whether anything answers whoever has no key."""
    text = ", ".join(f"{what}: {answer}" for what, answer in contact.door.items())
    codes = [code for code in contact.door.values() if isinstance(code, int)]
    if not codes:
        return "not known", text or "There was no endpoint to ask."
    return ("fail" if min(codes) < 400 else "pass"), text


def whole(contact: Contact) -> tuple[Outcome, str]:
    """Judge tools, structured output, reasoning and the printed command."""
    health = contact.answers.get("verify_model_health")
    if health is None:
        return "not known", "It was not deployed."
    text = str(health.get("summary"))
    if contact.snippet is None:
        return ("fail" if not health.get("ok") else "not known"), f"{text} No command was run."
    status, printed = contact.snippet
    well = health.get("ok") and status == 0 and "error" not in printed.lower()
    return ("pass" if well else "fail"), f"{text} The command ended with {status}: {printed}"


def observed(contact: Contact) -> tuple[Outcome, str]:
    """Judge whether the cloud gives the engine's log, and the engine its metrics."""
    tools = ("get_logs", "get_metrics")
    answers = [contact.answers[tool] for tool in tools if tool in contact.answers]
    if len(answers) < len(tools):
        return "not known", "It was not deployed."
    text = " ".join(str(answer.get("summary")) for answer in answers)
    lines = answers[0].get("data", {}).get("lines")
    return ("pass" if all(a.get("ok") for a in answers) and lines else "fail"), text


def leased(contact: Contact) -> tuple[Outcome, str]:
    """Judge whether the cloud keeps its end, and whether that end moves where it can."""
    before, after = (contact.answers.get(one) for one in ("status ready", "update_vllm_scaling"))
    if before is None or after is None:
        return "not known", "It was not deployed."
    was, now = before.get("data", {}), after.get("data", {})
    text = f"Kept by the {was.get('lease')}, until {was.get('expires_at')}. {after.get('summary')}"
    fixed = after.get("code") == Unsupported.code
    moved = now.get("lease") == "cloud" and str(now.get("expires_at")) > str(was.get("expires_at"))
    return ("pass" if was.get("lease") == "cloud" and (fixed or moved) else "fail"), text


def nothing_left(contact: Contact) -> tuple[Outcome, str]:
    """Judge whether the account has something of it that nobody needs any more."""
    found = contact.answers.get("get_system_status")
    if found is None:
        return "not known", "It was not deployed."
    data = found.get("data", {})
    ours = any(NAME in one["id"] for one in data.get("leftovers", ()))
    seen = found.get("ok") and not data.get("not_seen")
    text = f"{found.get('summary')} {' '.join(data.get('not_seen', ()))}"
    return ("fail" if ours else "pass" if seen else "not known"), text


def removed(contact: Contact) -> tuple[Outcome, str]:
    """Judge whether it stopped where it can, and is gone without a trace that nobody names."""
    gone, left = contact.answers.get("destroy_vllm"), contact.answers.get("list_deployments", {})
    if gone is None:
        return "not known", "It was not deployed."
    stopped = contact.answers.get("status stopped")
    text = " ".join(str(a.get("summary")) for a in (stopped, gone, left) if a)
    rows = left.get("data", {}).get("deployments", ())
    there = any(one.get("name") == NAME for one in rows)
    halted = stopped is None or stopped.get("data", {}).get("state") == "stopped"
    is_gone = gone.get("ok") and gone.get("data", {}).get("gone") and not there
    return ("pass" if is_gone and halted else "fail"), text


_JUDGES: Final = {
    judge.__name__: judge
    for judge in (booted, shut, whole, observed, leased, removed, nothing_left)
}


class Item(Record):
    """One thing that only the real cloud can prove."""

    proves: str
    command: str
    """As a person would try it."""
    prints: str
    """What that should print."""
    checks: tuple[str, ...] = ()
    """Patterns of the plan's checks that tell it."""
    judge: Literal[
        "", "booted", "shut", "whole", "observed", "leased", "removed", "nothing_left"
    ] = ""
    """Who tells it where no check of the plan does."""

    def outcome(self, contact: Contact) -> tuple[Outcome, str]:
        """Return the outcome and what it rests on."""
        return _JUDGES[self.judge](contact) if self.judge else planned(contact, self.checks)


def _read() -> dict[str, tuple[Item, ...]]:
    read = tomllib.loads((ROOT / "first_contact.toml").read_text(encoding="utf-8"))
    items = {name: Item.model_validate(row) for name, row in read["items"].items()}
    return {cloud: tuple(items[name] for name in names) for cloud, names in read["clouds"].items()}


ITEMS: Final = _read()
"""By the first word of a target's name."""


def items_of(target: str) -> tuple[Item, ...]:
    """Return what a target's cloud has to prove; nothing for a target without a cloud."""
    return next((items for kind, items in ITEMS.items() if target.startswith(kind)), ())


def tables() -> str:
    """Return the checklist as Markdown, a table for each cloud."""
    titles = {"cloud-run": "Google Cloud Run", "aca": "Azure Container Apps", "tpu": "Cloud TPU"}
    parts = []
    for kind, items in ITEMS.items():
        rows = [
            f"| {n} | {i.proves} | `{i.command}` | {i.prints} |" for n, i in enumerate(items, 1)
        ]
        head = ["| | what it proves | command | what it should print |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {titles[kind]}", "", *head, *rows]))
    return "\n\n".join(parts)


def report(contact: Contact, settings: Settings) -> str:
    """Return what was seen, as Markdown without anybody's names."""
    where = "a simulated cloud" if contact.is_rehearsal else "the real cloud"
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"# First contact: {contact.target} on {where}",
        "",
        f"{PRODUCT} {VERSION}, {system}, {began}; model {MODEL}.",
        "",
        "| | what it proves | outcome | seen |",
        "|---|---|---|---|",
    ]
    for number, item in enumerate(items_of(contact.target), 1):
        outcome, text = item.outcome(contact)
        told = " ".join(anonymous(text, settings).replace("|", "/").split())[:900]
        lines.append(f"| {number} | {item.proves} | **{outcome}** | {told} |")
    return "\n".join(lines) + "\n"


def anonymous(text: str, settings: Settings) -> str:
    """Return a text without secrets, projects, subscriptions, hosts, addresses and people.

    >>> anonymous("me@example.org at 203.0.113.9", Settings(_env_file=None))
    '<person> at <address>'
    """
    named = {
        settings.google_cloud_project: "<project>",
        settings.azure_subscription_id: "<subscription>",
        settings.azure_resource_group: "<resource-group>",
        settings.azure_keyvault_name: "<vault>",
        settings.azure_storage_account: "<account>",
        settings.bucket_name: "<bucket>",
    }
    text = str(redact(text, settings.secrets))
    for name, instead in named.items():
        text = text.replace(name, instead) if name else text
    for pattern, instead in _PERSONAL:
        text = pattern.sub(instead, text)
    return text


_PERSONAL: Final = (
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<person>"),
    (
        re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:run\.app|azurecontainerapps\.io|vault\.azure\.net)"),
        "<host>",
    ),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (re.compile(r"\bproject(s?[=/ ])\d{6,}"), r"project\1<number>"),
)


class Person:
    """Whoever sits at the terminal; `always`: has agreed to all that follows."""

    def __init__(self, *, always: bool) -> None:
        self.always = always

    async def agrees(self, question: str) -> bool:
        """Ask; nobody at a terminal has not agreed."""
        print(f"\n? {question} [y/N]", flush=True)
        if self.always:
            print("yes", flush=True)
            return True
        if not sys.stdin.isatty():
            print("no: nobody is there to agree; YES=1 agrees beforehand", flush=True)
            return False
        said = await anyio.to_thread.run_sync(sys.stdin.readline)
        return said.strip().lower() in {"y", "yes"}

    async def elicited(self, message: str, *_rest: object) -> ElicitResult[dict[str, Any]]:
        """Answer what a tool asks a person."""
        if await self.agrees(message):
            return ElicitResult(action="accept", content={"confirm": True})
        return ElicitResult(action="decline", content=None)


async def first_contact(target: str, *, always: bool) -> int:
    """Look, ask, deploy, try, remove, and write the report; return how much failed."""
    settings, person = Settings(), Person(always=always)
    folder = Stage(settings).folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    chosen = {"TOOLSETS": "all", "VLLM_BASE_URL": ""}
    client = client_of(folder / "server.log", chosen, person.elicited)
    async with client:
        contact = Contact(client, target, is_rehearsal=settings.rehearsal)
        await contact.look()
        if await person.agrees(
            f"Set {target} up? It makes what a deployment stands on; that costs nothing, or the"
            " few dollars a month that it names."
        ):
            await contact.call("setup_target", target=target)
            await contact.look()
        plan = contact.answers["plan_deployment"]
        price = (plan.get("data", {}).get("foreseen") or {}).get("usd_per_hour")
        said = f"${price:.2f} an hour" if isinstance(price, float) else "a price nobody knows"
        if plan.get("ok") and await person.agrees(
            f"Deploy {MODEL} on {target}, try it and remove it again? {said}, for half an hour or"
            f" so and {TTL_MINUTES} minutes at most."
        ):
            person.always = True  # to the same, asked once more by each tool, and to its removal
            await contact.live()
    text = report(contact, settings)
    file = folder / f"first-contact-{target}-{datetime.now(UTC):%Y%m%d-%H%M%S}.md"
    file.write_text(text, encoding="utf-8")
    print(f"\n{text}\nThe report, without names or secrets: {file}", flush=True)
    return sum(item.outcome(contact)[0] == "fail" for item in items_of(target))


def main(arguments: list[str]) -> int:
    """Try `TARGET [yes]`; return the exit status."""
    target = arguments[0] if arguments else ""
    if not items_of(target):
        kinds = ", ".join(f"{kind}-…" for kind in ITEMS)
        print(f"Give the target of a cloud: make first-contact TARGET={kinds}.", file=sys.stderr)
        return 2
    failed = anyio.run(lambda: first_contact(target, always="yes" in arguments[1:]))
    print("Nothing failed." if not failed else f"{failed} of them failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
