"""A Hugging Face token, read, asked about and kept where deployments read it; never told."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import huggingface_hub
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # it says which httpx it uses
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
)
from pydantic import SecretStr

from backends.base import Backend, KeepsSecrets
from core.environment import inherited_environment
from core.errors import InvalidArgument, NextStep
from core.records import Answer
from core.settings import Settings
from operations.abilities import chosen
from operations.runtime import Runtime

NAME: Final = "hf-token"
"""Of the secret, wherever it is kept."""
_SETTING: Final = "HF_TOKEN"
_SHAPE: Final = re.compile(r"(?:hf|api_org)_[A-Za-z0-9._-]{16,500}")
"""Nothing else is sent to the Hub: a call may name any variable and any file."""
_MAX_FILE_BYTES: Final = 4096
_ASK_SECONDS: Final = 15.0
_REHEARSED: Final = "a rehearsal asks nobody outside this machine"


class Read(NamedTuple):
    """A token, and where it was found."""

    token: SecretStr
    source: str


class Known(NamedTuple):
    """What the Hub says of a token; `why_not` where it was not asked or did not say."""

    account: str | None = None
    role: str | None = None
    why_not: str | None = None


class SavedToken(Answer):
    """A token that is kept; its value is nowhere in here."""

    target: str
    secret: str
    version: str
    source: str
    """Where the token was read."""
    validated: bool
    """The Hub has said whose it is."""
    account: str | None
    """Whose it is."""
    role: str | None
    """What it may do: read, write or fineGrained."""
    why_not_validated: str | None
    readable_by: tuple[str, ...]
    """Identities of ours that may read it."""

    def summary(self) -> str:
        """Say where it is, and what the Hub says of it."""
        head = f"The token is kept as {self.secret}, version {self.version}, for {self.target}"
        if self.validated:
            return f"{head}; it is {self.account}'s."
        return f"{head}; it was not validated: {self.why_not_validated}."

    def warnings(self) -> tuple[str, ...]:
        """Warn of what makes a deployment fail, and of what is too much."""
        doubts = {
            "Nobody has asked the Hub whether this token is good.": not self.validated,
            "It may also write; a token that only reads is enough.": self.role == "write",
            "No identity of a deployment was seen to be allowed to read it: call setup_target.": (
                not self.readable_by
            ),
            "It went through this conversation: with `env` or `file` it need not.": (
                self.source == "the argument"
            ),
        }
        return tuple(words for words, true in doubts.items() if true)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Deploy what needs it."""
        return (NextStep("deploy_vllm", {"target": self.target}),)


async def save(
    runtime: Runtime,
    *,
    token: str | None = None,
    env: str | None = None,
    file: str | None = None,
    target: str | None = None,
) -> SavedToken:
    """Read a token, let the Hub say whose it is, and keep it; one that the Hub refuses is not kept.

    Raises:
        InvalidArgument: No token is found, what is found is none, or the Hub refuses it.
        Unsupported: The target keeps no secrets.
        Ambiguous: Several targets do, and none is named.
        CloudError: It could not be kept.
    """
    where, backend = chosen(
        runtime.stage, _keeps, "keep secrets", target, shared=True, tool="save_hf_token"
    )
    read = read_token(runtime.settings, token=token, env=env, file=file)
    runtime.hush(read.token)
    known = await ask_the_hub(runtime.settings, read.token)
    kept = await backend.keep_secret(NAME, read.token)
    return SavedToken(
        target=where.name,
        secret=kept.name,
        version=kept.version,
        source=read.source,
        validated=known.why_not is None,
        account=known.account,
        role=known.role,
        why_not_validated=known.why_not,
        readable_by=kept.readable_by,
    )


def read_token(
    settings: Settings,
    *,
    token: str | None = None,
    env: str | None = None,
    file: str | None = None,
) -> Read:
    """Read a token from one place; left out, from the setting HF_TOKEN.

    Raises:
        InvalidArgument: Several places are named, there is nothing, or it is no token.
    """
    if len([said for said in (token, env, file) if said]) > 1:
        raise InvalidArgument(
            "A token can be read from one place only.", fix="Give one of token, env and file."
        )
    if token:
        return _checked(token, "the argument")
    if file:
        return _checked(_of_file(Path(file).expanduser()), f"the file {file}")
    return _checked(_of_variable(settings, env or _SETTING), f"the variable {env or _SETTING}")


async def ask_the_hub(settings: Settings, token: SecretStr) -> Known:
    """Let the Hub say whose token it is; in a rehearsal it is not asked.

    Raises:
        InvalidArgument: The Hub refuses it.
    """
    if settings.rehearsal:
        return Known(why_not=_REHEARSED)
    with anyio.move_on_after(_ASK_SECONDS):
        return await anyio.to_thread.run_sync(_whoami, token, abandon_on_cancel=True)
    return Known(why_not=f"the Hub did not answer within {_ASK_SECONDS:.0f} s")


def _whoami(token: SecretStr) -> Known:
    try:
        answer = huggingface_hub.HfApi().whoami(token.get_secret_value())
    except OfflineModeIsEnabled:
        return Known(why_not="HF_HUB_OFFLINE forbids to ask the Hub")
    except HfHubHTTPError as exc:
        if exc.response.status_code == 401:
            raise _refused() from exc
        return Known(why_not=f"the Hub answered {exc.response.status_code}")
    except (HTTPError, OSError, ValueError) as exc:
        return Known(why_not=f"the Hub could not be asked ({type(exc).__name__})")
    return _known(answer)


def _known(answer: Any) -> Known:
    name = answer.get("name") if isinstance(answer, Mapping) else None
    if not isinstance(name, str):
        return Known(why_not="the Hub's answer names no account")
    access = (answer.get("auth") or {}).get("accessToken") or {}
    return Known(account=name, role=access.get("role"))


def _refused() -> InvalidArgument:
    return InvalidArgument(
        "The Hub refuses this token; it was not kept.",
        fix="Make one that may read at huggingface.co/settings/tokens, and give it by `env` or"
        " `file`.",
    )


def _checked(text: str, source: str) -> Read:
    word = text.strip()
    if not _SHAPE.fullmatch(word):
        raise InvalidArgument(
            f"What {source} holds is no token of the Hugging Face Hub; nothing was sent or kept.",
            fix="A token begins with hf_ and is one word: make one at"
            " huggingface.co/settings/tokens.",
        )
    return Read(SecretStr(word), source)


def _of_variable(settings: Settings, name: str) -> str:
    own = settings.hf_token.get_secret_value() if settings.hf_token else None
    found = own if name == _SETTING else inherited_environment().get(name)
    if not found:
        raise InvalidArgument(
            f"The server's environment has no {name[:60]}.",
            fix="Set it where the server is started, or give `file`: after `hf auth login` the"
            " token lies in ~/.cache/huggingface/token.",
        )
    return found


def _of_file(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidArgument(
                f"{path} is no file that holds just a token.",
                fix="Name a file with the token alone, such as ~/.cache/huggingface/token.",
            )
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidArgument(
            f"{path} cannot be read as text.", fix="Name a file with the token alone."
        ) from exc


def _keeps(backend: Backend) -> KeepsSecrets | None:
    return backend if isinstance(backend, KeepsSecrets) else None
