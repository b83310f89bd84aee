"""Claude Code, Gemini CLI and Codex: each lists our server, then works with a scripted model.

None of them needs a key for that. The model is a page on this machine that wishes for two calls;
all else is the agent's own: its configuration, its process, its permissions, what it passes on.
"""

import json
from typing import Final

from operations.clients import SERVER_KEY
from tests.clients.desk import ClientFailedError, Desk
from tests.clients.dialects import Wish
from tests.clients.installing import Installed
from tests.clients.model import Model, serving
from tests.clients.seen import DESTROY, HELP, Seen

_PROMPT: Final = "Show what you can do, then delete the deployment."
_WISHES: Final = (Wish(HELP, {}), Wish(DESTROY.tool, DESTROY.arguments))


async def claude_code(desk: Desk, found: Installed) -> Seen:
    """Use the program itself: its package only chooses the one for the machine."""
    program = found.module("@anthropic-ai/claude-code-*/claude")
    await desk.configure("claude")
    model = Model(_WISHES)
    with serving(model) as url:
        environment = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",  # all tools are offered at once, so that they count
            "MCP_CONNECTION_NONBLOCKING": "0",  # or its first question goes out without them
            "MCP_CONNECT_TIMEOUT_MS": "45000",  # the same, on a busy machine
            "MCP_TIMEOUT": "45000",
        }
        listed = await desk.run(program, "mcp", "list", env=environment)
        _must_say(f"{SERVER_KEY}: {desk.started} - ✔ Connected", listed.output)
        allowed = ",".join(f"mcp__{SERVER_KEY}__{wish.tool}" for wish in _WISHES)
        await desk.run(program, "-p", _PROMPT, "--allowedTools", allowed, env=environment)
    return Seen(model.offered, model.told)


async def gemini_cli(desk: Desk, found: Installed) -> Seen:
    """Put what `mcp-config` prints beside settings that it needs."""
    gemini = found.script("@google/gemini-cli/bundle/gemini.js")
    await desk.configure("gemini", before=_GEMINI_SETTINGS)
    model = Model(_WISHES)
    with serving(model) as url:
        environment = {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        listed = await desk.run(*gemini, "mcp", "list", env=environment)
        _must_say(f"{desk.started} (stdio) - Connected", listed.errors)
        # With a model of its choice it would ask another model which one to ask.
        argv = (*gemini, "-m", "gemini-2.5-flash", "--yolo", "-p", _PROMPT)
        await desk.run(*argv, env=environment)
    return Seen(model.offered, model.told)


async def codex(desk: Desk, found: Installed) -> Seen:
    """Put what `mcp-config` prints beside a model, and add to the entry."""
    program = found.script("@openai/codex/bin/codex.js")
    model = Model(_WISHES)
    with serving(model) as url:
        await desk.configure("codex", before=_CODEX_CONFIG.format(url=url), after=_CODEX_ENTRY)
        shown = await desk.run(*program, "mcp", "get", SERVER_KEY, "--json")
        started = json.loads(shown.output)["transport"]
        _must_say(desk.started, " ".join((started["command"], *started["args"])))
        await desk.run(*program, "exec", "--skip-git-repo-check", _PROMPT, env={"NO_KEY": "none"})
    return Seen(model.offered, model.told)


def _must_say(wanted: str, said: str) -> None:
    if wanted not in said:
        raise ClientFailedError(f"Not said: {wanted}\n{said}")


_GEMINI_SETTINGS: Final = """\
{
  "security": { "auth": { "selectedType": "gemini-api-key" } },
  "privacy": { "usageStatisticsEnabled": false },
  "general": { "enableAutoUpdate": false }
}
"""

_CODEX_CONFIG: Final = """\
model = "none"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "NO_KEY"

"""
_CODEX_ENTRY: Final = """
required = true  # or the first question goes out without its tools
default_tools_approval_mode = "approve"  # or nobody is asked: the call is never made
"""
