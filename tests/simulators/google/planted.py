"""Projects with a past, for a simulated Google Cloud to begin with."""

import base64
import time
from pathlib import Path
from typing import Any

from google.cloud.devtools.cloudbuild_v1.types import Build, BuildStep
from google.longrunning.operations_pb2 import Operation

from simulators.google.plane import APIS
from simulators.google.state import Entry, Instance, Knobs, Project

LOG_BEGIN = 1_790_000_000.0
DAY_SECONDS = 86_400
_LINES = (
    ("one", "DEFAULT", "Loading weights took 3 s"),
    ("one", "ERROR", "CUDA out of memory"),
    ("two", "INFO", "Application startup complete."),
)


def plant(folder: Path) -> None:
    """Write them where a plane looks when it starts."""
    kept = folder / "projects"
    kept.mkdir(parents=True)
    others = (_project("p-logged", log=_log()), _building(), _project("rehearsal"))
    for project in (*_with_instances(), *others):
        text = project.model_dump_json()
        (kept / f"{project.id}.json").write_text(text, encoding="utf-8")


def _project(name: str, **more: Any) -> Project:
    number = str(200_000_000_000 + sum(name.encode()))
    return Project(id=name, number=number, apis=set(APIS), **more)


def _log() -> list[Entry]:
    """Three lines of two services, a minute apart."""
    return [
        Entry(
            timestamp=LOG_BEGIN + 60 * number,
            severity=severity,
            text=text,
            log_name="run.googleapis.com/stderr",
            resource="cloud_run_revision",
            labels={"service_name": service, "location": "us-central1"},
            insert_id=f"{number:016x}",
        )
        for number, (service, severity, text) in enumerate(_LINES)
    ]


def _building() -> Project:
    """A build that was queued when the process ended."""
    named = base64.urlsafe_b64encode(b"left").decode().rstrip("=")
    operation = f"operations/build/p-building/{named}"
    name = "projects/1/locations/us-central1/builds/left"
    status: Any = Build.Status.QUEUED
    step = BuildStep(name="ubuntu", args=["true"])
    return _project(
        "p-building",
        knobs=Knobs(boot_seconds=0),
        builds={"left": Build(id="left", name=name, steps=[step], status=status)},
        operations={operation: Operation(name=operation)},
    )


def _with_instances() -> list[Project]:
    """Instances from so many seconds ago to so many; one that is to be there ends tomorrow."""
    busy = _ran(300, -DAY_SECONDS)
    busy.busy.append((busy.started, busy.ended))
    late = Knobs(metric_delay_seconds=DAY_SECONDS)
    return [
        _project("p-busy", instances=[busy, _ran(200, -DAY_SECONDS), _ran(250, 100)]),
        _project("p-steady", instances=[_ran(300, -DAY_SECONDS)]),
        _project("p-late", knobs=late, instances=[_ran(DAY_SECONDS + 3600, 30)]),
        _project("p-never"),
        _project("p-ended", instances=[_ran(300, 10)]),
        _project("p-billed", instances=[_ran(600, 400), _ran(500, 300)]),
        _project("p-two", instances=[_ran(600, 400), _ran(500, 300, revision="one-2")]),
    ]


def _ran(begin: float, end: float, *, revision: str = "one-1") -> Instance:
    now = time.time()
    return Instance(
        service="one",
        revision=revision,
        location="us-central1",
        started=now - begin,
        ended=now - end,
    )
