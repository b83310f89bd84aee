"""What a cell asks of the client; validated here, so that no worker needs to."""

from dataclasses import fields
from pathlib import Path

from benchmark.client.shares import Share
from benchmark.records import Load, StopRule, Workload
from core.records import Record


class Job(Record, use_attribute_docstrings=False):
    """One cell."""

    cell: str
    base_url: str
    path: str
    """Of the API, such as /v1/completions."""
    credential_file: Path | None = None
    """Holds the bearer token; read again when it changes."""
    ca_file: Path | None = None
    """The certificate to trust, and nothing else; the usual authorities if there is none."""
    load: Load
    context: int
    workload: Workload
    model: str
    token_ids: tuple[int, ...]
    """What prompts are made of."""
    words: tuple[str, ...] = ()
    """What a chat's prompts are made of."""
    template_tokens: int = 0
    stop: StopRule = StopRule()
    ramp_seconds: float = 1.0
    slice_seconds: float = 0.25
    """How often the workers report."""
    patience_seconds: float = 3.0
    """Without an answer, and with nothing under way, the endpoint is gone after so long."""
    first_request: int = 0
    """The number of the first prompt, so that no cell of a run repeats one."""
    samples_file: Path
    """A folder for what the workers hand over."""

    def share(self, worker: int = 0, workers: int = 1) -> Share:
        """Give the part of one of so many workers."""
        job = self.model_dump(mode="json")
        said = {**job, **job["load"], **job["workload"], **job["stop"]}
        said |= {"worker": worker, "workers": workers}
        return Share(**{field.name: said[field.name] for field in fields(Share)})
