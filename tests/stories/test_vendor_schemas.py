"""Every call of whole lives, held against the vendors' own specifications: no violation at all.

The judges are the SDKs' own models and, for Container Apps, Microsoft's schema, which lies beside
the project and not in it. Without it that part did not run, and the test says so.
"""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest

from core.settings import AzurePlane, GooglePlane
from tests import vendor_azure, vendor_google
from tests.azure_plane import azure_plane
from tests.backends.aca import armschema
from tests.conversation import Agent, agent_of
from tests.google_plane import google_plane
from tests.recorded import Call, calls
from tests.stories import test_aca, test_cloud_run, test_leftovers_google, test_tpu
from tests.stories.conftest import Azure, Cloud

pytestmark = pytest.mark.anyio
CHIPS = ("tpu-v6e-1", "tpu-v6e-4-spot", "tpu-v6e-8-flex")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the calls of this module's lives are written down."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def plane(records: Path) -> Iterator[GooglePlane]:
    """A Google Cloud that writes down every call."""
    (records / "google-plane").mkdir()
    with google_plane(records / "google-plane", record=records / "google") as plane:
        yield plane


@pytest.fixture(scope="module")
def azure(records: Path) -> Iterator[AzurePlane]:
    """An Azure that writes down every call."""
    (records / "azure-plane").mkdir()
    with azure_plane(records / "azure-plane", record=records / "azure") as plane:
        yield plane


@pytest.fixture
async def on_google(bare_cloud: Cloud) -> AsyncIterator[Agent]:
    settings = bare_cloud.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        yield agent


@pytest.fixture
async def on_azure(bare_azure: Azure) -> AsyncIterator[Agent]:
    settings = bare_azure.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        yield agent


def judged(
    found: Iterable[Call], judge: Callable[[Call], list[str] | None]
) -> tuple[int, Counter[str]]:
    """Return how many calls could be judged, and what was wrong with them."""
    verdicts = [verdict for call in found if (verdict := judge(call)) is not None]
    return len(verdicts), Counter(fault for verdict in verdicts for fault in verdict)


def assert_all_known(file: Path, judge: Callable[[Call], list[str] | None], least: int) -> None:
    """Judge what was written down, and forget it."""
    count, wrong = judged(calls(file), judge)
    sys.stderr.write(f"{count} calls judged.\n")
    assert wrong == Counter()
    assert count >= least
    file.unlink()


@pytest.mark.parametrize("target", test_cloud_run.TARGETS)
async def test_a_life_on_cloud_run(on_google: Agent, records: Path, target: str) -> None:
    await test_cloud_run.test_a_life_with_vllm(on_google, target)
    assert_all_known(records / "google", vendor_google.faults, 150)


async def test_a_life_with_ollama(on_google: Agent, bare_cloud: Cloud, records: Path) -> None:
    await test_cloud_run.test_a_life_with_ollama(on_google, bare_cloud, "cloud-run-l4")
    assert_all_known(records / "google", vendor_google.faults, 150)


async def test_leftovers_of_a_project(cloud: Cloud, records: Path) -> None:
    await test_leftovers_google.test_forty_of_ours_are_found_beside_forty_of_others(cloud)
    assert_all_known(records / "google", vendor_google.faults, 1000)


@pytest.mark.parametrize("control_plane", test_tpu.PLANES)
@pytest.mark.parametrize("target", CHIPS)
async def test_a_life_on_chips(
    on_google: Agent, bare_cloud: Cloud, records: Path, target: str, control_plane: str
) -> None:
    await test_tpu.test_a_life(on_google, bare_cloud, target, control_plane)
    assert_all_known(records / "google", vendor_google.faults, 100)


@pytest.mark.parametrize("target", test_aca.WISHES)
async def test_a_life_on_container_apps(
    on_azure: Agent, bare_azure: Azure, records: Path, target: str
) -> None:
    await test_aca.test_a_life_with_vllm(on_azure, bare_azure, target)
    if not armschema.HERE:
        sys.stderr.write(f"{armschema.WHY_NOT} The models alone judged.\n")
    assert_all_known(records / "azure", vendor_azure.faults, 50)
