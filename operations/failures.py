"""The catalogue of failures as it can be read: codes, causes and fixes."""

from typing import Final

from core.errors import NotFound
from core.records import Answer, Record
from logs.catalogue import WRITERS, Pattern, Writer, catalogue

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
    more: str = "vllm://failures/WRITER has cause and fix of each, …/WRITER/CODE all of one."

    def summary(self) -> str:
        """Count them."""
        return f"{sum(map(len, self.codes.values()))} failures are recognized in logs."


class FailureRow(Record):
    """What one kind of line means."""

    code: str
    cause: str
    """{name} stands for what the line says there; empty is the line itself."""
    fix: str
    rank: str
    """A result comes of another failure; a warning ends nothing by itself."""


class FailuresOf(Answer):
    """The failures of one writer, in the order in which they are looked for."""

    writer: str
    failures: tuple[FailureRow, ...]

    def summary(self) -> str:
        """Say whose."""
        return f"{len(self.failures)} kinds of lines of {self.writer} are understood."


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
    """Give cause and fix of all of one writer.

    Raises:
        NotFound: There is no such writer.
    """
    rows = (
        FailureRow(code=one.code, cause=one.cause, fix=one.fix, rank=one.rank)
        for one in catalogue(_known(writer))
    )
    return FailuresOf(writer=writer, failures=tuple(rows))


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
