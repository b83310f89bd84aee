"""Code that asks a deployment, to be pasted: it fetches key, token and certificate itself."""

import json
import shlex
from collections.abc import Mapping
from typing import Final

from core.records import KEY_HEADER, Access

_GEMINI_CLI: Final = (
    "Gemini CLI cannot have it as its own model: it speaks Google's API and not OpenAI's, so a"
    " proxy such as LiteLLM would have to stand between. As a client of this server it asks the"
    " model with query_gemma4."
)
"""github.com/google-gemini/gemini-cli/pull/1814 and 16010, both closed, and issue 15299, open
(read 2026-11-23)."""
_HTTPX: Final = """
try:
    import httpx2 as httpx  # what newer openai packages are built on
except ImportError:
    import httpx

from openai import DefaultHttpxClient, OpenAI"""
_QUESTION: Final = [{"role": "user", "content": "What is Gemma?"}]


def snippets(name: str, access: Access, model: str) -> Mapping[str, str]:
    """Return by kind a command or a program that asks one question."""
    body = json.dumps({"model": model, "messages": _QUESTION})
    return {
        "curl": curl(name, access, "/v1/chat/completions", body=body),
        "python": _python(name, access, model),
        "gemini_cli": _GEMINI_CLI,
    }


def curl(name: str, access: Access, path: str, *, body: str = "") -> str:
    """Write a person's own question, which fetches whatever it must show or trust."""
    header = "".join(
        f' -H "{name}: Bearer $({command})"' for name, command in access.header_commands.items()
    )
    data = ""
    if body:
        quoted = body.replace("'", "'\\''")
        data = f" -H 'Content-Type: application/json' -d '{quoted}'"
    through = f" --unix-socket {shlex.quote(access.socket)}" if access.socket else ""
    asked = f"{through}{header}{data} {access.http_url}{path}"
    if not access.certificate_command:
        return f"curl -sS{asked}"
    file = f"{name}.pem"
    return f"{access.certificate_command} > {file} && curl -sS --cacert {file}{asked}"


def _python(name: str, access: Access, model: str) -> str:
    """Write a program for the openai package, which needs that package alone.

    `str` is for the masking of secrets: what else follows `api_key=` looks like a key.
    """
    commands = dict(access.header_commands)
    key = commands.pop(KEY_HEADER, None)
    rows = [
        f"    base_url={access.http_url + '/v1'!r},",
        f"    api_key={f'str(printed({key!r}))' if key else repr('none')},",
    ]
    if commands:
        headers = ", ".join(f'{n!r}: ("Bearer " + printed({c!r}))' for n, c in commands.items())
        rows.append(f"    default_headers={{{headers}}},")
    imports, trusted = "from openai import OpenAI", ""
    if access.certificate_command:
        imports = "import ssl\n\nfrom openai import DefaultHttpxClient, OpenAI"
        trusted = (
            "trusted = ssl.create_default_context("
            f"cadata=printed({access.certificate_command!r}))\n"
        )
        rows.append("    http_client=DefaultHttpxClient(verify=trusted),")
    if access.socket:
        imports = _HTTPX
        rows.append(
            "    http_client=DefaultHttpxClient("
            f"transport=httpx.HTTPTransport(uds={access.socket!r})),"
        )
    asked = f"model={model!r}, messages={_QUESTION!r}"
    return "\n".join(
        [
            f"# pip install openai; then save this as ask_{name.replace('-', '_')}.py",
            "import subprocess",
            imports,
            "",
            "",
            "def printed(command):",
            '    """Return what a shell command prints: a key is fetched, never written down."""',
            "    done = subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE)",
            "    return done.stdout.decode().strip()",
            "",
            "",
            f"{trusted}client = OpenAI(",
            *rows,
            ")",
            f"reply = client.chat.completions.create({asked})",
            "print(reply.choices[0].message.content)",
        ]
    )
