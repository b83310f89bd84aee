"""What Cloud Monitoring measures of the instances of a service, as rows of numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from emulators.google.state import Instance, Project

SAMPLE_SECONDS: Final = 60
"""How often Cloud Run's metrics are sampled.

Source: docs.cloud.google.com/monitoring/api/metrics_gcp, read 2026-11.
"""
INSTANCES: Final = "run.googleapis.com/container/instance_count"
BILLED: Final = "run.googleapis.com/container/billable_instance_time"
RESOURCE: Final = "cloud_run_revision"


@dataclass(frozen=True, slots=True)
class Kind:
    """What sort of numbers a metric has."""

    delta: bool
    """Each point is what was added since the one before; else how it was at a moment."""
    whole: bool
    unit: str


KINDS: Final[Mapping[str, Kind]] = {
    INSTANCES: Kind(delta=False, whole=True, unit="1"),
    BILLED: Kind(delta=True, whole=False, unit="s"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One point; a moment begins where it ends."""

    begin: float
    end: float
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """One time series, newest point first."""

    metric_labels: Mapping[str, str]
    resource_labels: Mapping[str, str]
    samples: tuple[Sample, ...]

    def with_samples(self, samples: Sequence[Sample]) -> "Row":
        """Give the same series with other points."""
        return replace(self, samples=tuple(samples))


def rows_of(project: Project, metric: str, begin: float, end: float, now: float) -> list[Row]:
    """Give the series of a metric, with the points that end in an interval and are known by now."""
    known = now - project.knobs.metric_delay_seconds
    oldest = max(begin, min((one.started for one in project.instances), default=now))
    moments = _moments(oldest, min(end, known), known)
    rows = [row for place in _places(project) for row in _rows(project, metric, place, moments)]
    return [row for row in rows if row.samples]


def _places(project: Project) -> list[tuple[str, str, str]]:
    """Give service, revision and location of all that ever ran."""
    return sorted({(one.service, one.revision, one.location) for one in project.instances})


def _moments(begin: float, end: float, known: float) -> list[float]:
    """Give the sampled moments of an interval, newest first: the last is as new as is known."""
    skipped = max(0, -int((end - known) // SAMPLE_SECONDS))
    newest = known - skipped * SAMPLE_SECONDS
    count = int((newest - begin) // SAMPLE_SECONDS) + 1 if newest >= begin else 0
    return [newest - place * SAMPLE_SECONDS for place in range(count)]


def _rows(
    project: Project, metric: str, place: tuple[str, str, str], moments: Sequence[float]
) -> Iterator[Row]:
    service, revision, location = place
    instances = [one for one in project.instances if one.revision == revision]
    first = min(one.started for one in instances)
    seen = [at for at in moments if at >= first]
    labels = {
        "project_id": project.id,
        "service_name": service,
        "revision_name": revision,
        "location": location,
        "configuration_name": service,
    }
    if metric == BILLED:
        yield Row({}, labels, tuple(_billed(instances, at) for at in seen))
        return
    for state in ("active", "idle"):
        counts = tuple(_count(instances, at, active=state == "active") for at in seen)
        yield Row({"state": state}, labels, counts)


def _count(instances: Sequence[Instance], at: float, *, active: bool) -> Sample:
    there = [one for one in instances if one.exists(at)]
    return Sample(at, at, sum(one.active(at) == active for one in there))


def _billed(instances: Sequence[Instance], end: float) -> Sample:
    begin = end - SAMPLE_SECONDS
    return Sample(begin, end, sum(one.billed(begin, end) for one in instances))
