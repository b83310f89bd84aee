"""The catalogue of failures as it can be read: codes, causes and fixes."""

from typing import Final

from core.errors import NotFound
from core.records import Answer
from logs.failures import WRITERS, Pattern, Writer, catalogue

_ABOUT: Final[dict[Writer, str]] = {
    "engine": "what an engine's log says when it dies or suffers",
    "cloud_run": "what Cloud Run says when it refuses, gives up or suffers",
    "aca": "the same of Azure Container Apps",
    "tpu": "the same of Cloud TPU",
    "ollama": "what Ollama says when it cannot fetch, load or run a model",
}


class KnownFailures(Answer):
    """Every failure that is recognized, by who writes the line that tells it."""

    codes: dict[str, tuple[str, ...]]
    about: dict[str, str]
    more: str = "vllm://failures/WRITER has the causes of each, …/WRITER/CODE all of one."

    def summary(self) -> str:
        """Count them."""
        return f"{sum(map(len, self.codes.values()))} failures are recognized in logs."


class FailuresOf(Answer):
    """The failures of one writer, in the order in which they are looked for."""

    writer: str
    causes: dict[str, tuple[str, ...]]
    """By code; {name} stands for what the line says there, and empty is the line itself."""

    def summary(self) -> str:
        """Say whose."""
        return f"{len(self.causes)} failures of {self.writer} are understood."


class FailureMeaning(Answer):
    """One failure in full."""

    writer: str
    code: str
    entries: tuple[Pattern, ...]
    """Each wording that means it."""

    def summary(self) -> str:
        """Say what to do."""
        return f"{self.code}: {self.entries[0].fix}"


def known_failures() -> KnownFailures:
    """Give the codes."""
    return KnownFailures(
        codes={
            writer: tuple(dict.fromkeys(entry.code for entry in catalogue(writer)))
            for writer in WRITERS
        },
        about={**_ABOUT},
    )


def failures_of(writer: str) -> FailuresOf:
    """Return the causes of all of one writer, by code.

    Raises:
        NotFound: There is no such writer.
    """
    causes: dict[str, dict[str, None]] = {}
    for one in catalogue(_known(writer)):
        causes.setdefault(one.code, {})[one.cause] = None
    return FailuresOf(writer=writer, causes={code: tuple(said) for code, said in causes.items()})


def failure(writer: str, code: str) -> FailureMeaning:
    """Give all that is known of one.

    Raises:
        NotFound: There is no such writer or code.
    """
    entries = tuple(one for one in catalogue(_known(writer)) if one.code == code)
    if not entries:
        raise NotFound(
            f"{writer} has no failure of that code.", fix=f"Read vllm://failures/{writer}."
        )
    return FailureMeaning(writer=writer, code=code, entries=entries)


def _known(writer: str) -> Writer:
    for one in WRITERS:
        if one == writer:
            return one
    raise NotFound("There is no such writer.", fix=f"There are: {', '.join(WRITERS)}.")
