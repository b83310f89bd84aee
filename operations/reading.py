"""What can be read of a deployment: its address, its log, its configuration."""

from typing import Final

from backends.base import DeploymentConfig, HasLogs, LogLines, WritesConfig
from core.errors import Unsupported
from core.records import Access, State
from operations.answers import Located
from operations.resolve import Found
from operations.runtime import Runtime

MAX_LOG_LINES: Final = 500
"""About 40 kB: what an agent can read in one go."""


class EndpointInfo(Located):
    """Where a deployment answers."""

    url: str
    openai_base_url: str
    """For any OpenAI client."""
    served_model_name: str
    protection: str
    answers: bool
    """Whether /health said yes just now."""
    state: State
    curl: str
    """Fetches its own credential: no key is in it."""
    certificate: str | None = None
    """PEM, of a server that signs for itself: clients must trust it, and may trust it alone."""

    def summary(self) -> str:
        """Say where, and whether it answers."""
        return f"{self.url} {'answers' if self.answers else f'does not answer ({self.state})'}."


class Logs(Located):
    """The newest lines of an engine's log."""

    lines: tuple[str, ...]
    """Newest last."""
    total: int
    truncated: bool

    def summary(self) -> str:
        """Say how many of how many."""
        return f"The newest {len(self.lines)} of {self.total} lines of {self.name}, newest last."


class Config(Located):
    """A deployment as commands and files for a person."""

    config: DeploymentConfig

    def summary(self) -> str:
        """Say what it is."""
        return f"{self.name} as shell commands, as docker run and as YAML."


async def endpoint_info(runtime: Runtime, found: Found) -> EndpointInfo:
    """Say where it answers, how it is protected, and how to try it."""
    access = runtime.keep_quiet(await found.backend.access(found.name))
    deployment = found.deployment
    return EndpointInfo(
        target=deployment.target,
        name=found.name,
        url=access.base_url,
        openai_base_url=f"{access.base_url}/v1",
        served_model_name=deployment.served_model_name,
        protection=access.protection,
        answers=deployment.state is State.READY,
        state=deployment.state,
        curl=curl(found.name, access),
        certificate=access.certificate,
    )


def curl(name: str, access: Access) -> str:
    """Write a person's own question, which fetches whatever it must show or trust."""
    header = "".join(
        f' -H "{name}: Bearer $({command})"' for name, command in access.header_commands.items()
    )
    asked = f"{header} {access.base_url}/v1/models"
    if not access.certificate_command:
        return f"curl -sS{asked}"
    file = f"{name}.pem"
    return f"{access.certificate_command} > {file} && curl -sS --cacert {file}{asked}"


async def logs(found: Found, *, lines: int, contains: str | None) -> Logs:
    """Give the newest lines."""
    if not isinstance(found.backend, HasLogs):
        raise Unsupported(
            f"{found.deployment.target} keeps no logs that can be read from here.",
            fix="Read them where the endpoint runs.",
        )
    seen: LogLines = await found.backend.logs(
        found.name, lines=min(lines, MAX_LOG_LINES), contains=contains
    )
    return Logs(
        target=found.deployment.target,
        name=found.name,
        lines=seen.lines,
        total=seen.total,
        truncated=seen.total > len(seen.lines),
    )


async def config(found: Found) -> Config:
    """Give the deployment as text."""
    if not isinstance(found.backend, WritesConfig):
        raise Unsupported(
            f"{found.deployment.target} was not configured from here.",
            fix="Ask whoever runs it.",
        )
    return Config(
        target=found.deployment.target,
        name=found.name,
        config=await found.backend.config(found.name),
    )
