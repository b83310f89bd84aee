"""How tests talk: as an agent does, through an MCP client."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from fastmcp import Client, FastMCP
from fastmcp.client.elicitation import ElicitResult

from core.redaction import MASK, redact
from core.settings import Settings
from server import build
from tests.soon import HANGS
from tests.words_not_written import unwanted_words
from tools.profile import listed
from tools.surface import TOOLS

Human = Callable[[str], str]
"""Gets the question, says accept, decline or cancel."""

SETTLED = {"ready", "failed", "stopped", "asleep"}


class Reply:
    """Both halves of one answer."""

    def __init__(self, structured: dict[str, Any] | None, text: str, *, is_error: bool) -> None:
        self.structured = structured or {}
        self.text = text
        self.failed = is_error

    @property
    def code(self) -> str:
        return str(self.structured.get("code", ""))

    @property
    def data(self) -> dict[str, Any]:
        found = self.structured["data"]
        assert isinstance(found, dict)
        return found

    @property
    def state(self) -> str:
        return str(self.data["state"])

    def __repr__(self) -> str:
        return self.text


_ADVISED: Final = re.compile(
    r"(?:\b(?:[Cc]all(?: again)?|[Uu]se|[Ss]ee|with|by|try)\s+`?|`)([a-z]+(?:_[a-z0-9]+)+)\b"
    r"|\b([a-z]+(?:_[a-z0-9]+)+)(?=\()"
)
"""How texts name a tool that is to be called."""
_PARAMETERS: Final = frozenset(name for one in TOOLS.values() for name in one.parameters)
_VERBS: Final = frozenset(name.partition("_")[0] for name in TOOLS)


def dead_ends(envelope: Mapping[str, Any], names: frozenset[str]) -> list[str]:
    """Return what an answer advises and cannot be called so in the profile that answered."""
    found = []
    for step in envelope.get("next", ()):
        one, given = TOOLS[step["tool"]], set(step["arguments"])
        needed = set(one.tool.parameters.get("required", ()))
        if step["tool"] not in names or not needed <= given <= {*one.parameters, "detail"}:
            found.append(str(step))
    told = [envelope.get(name) or "" for name in ("summary", "cause", "fix")]
    for text in [*told, *map(str, envelope.get("warnings", ()))]:
        for match in _ADVISED.finditer(text):
            name = match[1] or match[2]
            if name in _PARAMETERS or name.partition("_")[0] not in _VERBS or name in names:
                continue
            rest = text[match.end() :]
            marked = rest.startswith((" (listed with TOOLSETS=", " (not while READ_ONLY"))
            if name not in TOOLS or not (marked or TOOLS[name].group == "compat"):
                found.append(f"{name} in {text[:200]!r}")
    return found


TYPED: Final = frozenset(
    ("command", "commands", "docker_run", "yaml", "manifest", "curl", "python", "engine_line")
)
"""Fields that hold what a person types, or saves as a file, as it stands."""


def masked_commands(value: Any, *, typed: bool = False) -> list[str]:
    """Return what an answer gives to be typed and is masked within: it cannot work."""
    if isinstance(value, Mapping):
        pairs = value.items()
        return [found for name, one in pairs for found in masked_commands(one, typed=name in TYPED)]
    if isinstance(value, list):
        return [found for one in value for found in masked_commands(one, typed=typed)]
    return [value] if typed and isinstance(value, str) and MASK in value else []


class Agent:
    """One client of one server."""

    def __init__(
        self, client: Client[Any], asked: list[str], names: frozenset[str] | None = None
    ) -> None:
        self.client = client
        self.listed = names
        self.asked = asked
        """What the human was asked."""
        self.betrayed = False
        """Its clouds put secrets into commands, to see them masked."""

    async def call(self, tool: str, /, **arguments: Any) -> Reply:
        """Call a tool and have all that it knows; `brief` gives what users see."""
        return await self.brief(tool, **{"detail": "full", **arguments})

    async def brief(self, tool: str, /, **arguments: Any) -> Reply:
        """Call a tool as an agent does that asks for nothing more."""
        reply = await self.client.call_tool(tool, arguments, raise_on_error=False)
        text = "\n".join(getattr(block, "text", "") for block in reply.content)
        answer = Reply(reply.structured_content, text, is_error=reply.is_error)
        words = [answer.structured.get(part) or "" for part in ("summary", "cause", "fix")]
        unwanted = [unwanted_words(str(text)) for text in words[: 1 + 2 * answer.failed]]
        assert not any(unwanted) or "prompt" in arguments, (unwanted, text)
        masked = masked_commands(answer.structured)
        assert not masked or self.betrayed or MASK in repr(redact(arguments)), masked
        if self.listed is not None:
            assert not dead_ends(answer.structured, self.listed), text
        return answer

    async def names(self) -> set[str]:
        """Return the tools that are listed."""
        return {tool.name for tool in await self.client.list_tools()}

    async def settled(self, name: str, *, target: str = "local") -> Reply:
        """Watch a deployment until its state stays."""
        with anyio.fail_after(HANGS):
            while True:
                reply = await self.call("status_vllm", target=target, name=name, wait_s=20)
                if reply.failed or reply.state in SETTLED:
                    return reply

    async def serve(self, name: str = "one", **flags: Any) -> Reply:
        """Deploy on this machine and see it ready."""
        deployed = await self.call(
            "deploy_vllm", target="local", name=name, **{"model": "google/gemma-4-E2B-it", **flags}
        )
        assert not deployed.failed, deployed
        ready = await self.settled(name)
        assert ready.state == "ready", ready
        return ready


@asynccontextmanager
async def agent_of(
    settings: Settings, *, human: Human | None = None, mode: str = "auto"
) -> AsyncIterator[Agent]:
    """Start a server in process and connect to it; `mode` is FastMCP's name of the protocol."""
    async with calling(build(settings), mode, human, listed(settings)) as agent:
        yield agent


@asynccontextmanager
async def calling(
    server: FastMCP | str,
    mode: str,
    human: Human | None = None,
    names: frozenset[str] | None = None,
) -> AsyncIterator[Agent]:
    """Connect to a server, or to the URL of one, with a human who says what the test says."""
    asked: list[str] = []

    async def handler(message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        asked.append(message)
        assert human is not None
        action = human(message)
        content = {"confirm": True, "value": True} if action == "accept" else None
        return ElicitResult(action=action, content=content)

    client: Client[Any] = Client(server, mode=mode, elicitation_handler=handler if human else None)
    async with client:
        if isinstance(server, FastMCP):
            # The client would list every tool at its first call, for schemas of answers: none has
            # one, as `tests/golden` holds. Over HTTP it does, as those of users do.
            client.session._tool_output_schemas = dict.fromkeys(TOOLS)
        yield Agent(client, asked, names)
