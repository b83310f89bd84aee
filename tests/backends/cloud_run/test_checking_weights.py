"""Weights in a bucket are looked at file by file before a GPU is paid to load them."""

from collections.abc import AsyncIterator

import pytest

from backends.cloud_run import checks
from backends.cloud_run.site import Site
from backends.lifecycle import advance
from core.records import Preflight
from core.settings import GooglePlane
from tests.backends.cloud_run.planned import planned
from tests.backends.cloud_run.preflights import the_only_failure
from tests.backends.cloud_run.shelf import INDEX, ONE, TWO, below, model, safetensors, store
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Site]:
    controls.set(project, quotas={"l4": 3})
    async with opened(plane, project) as site:
        yield site


async def checked(site: Site, files: dict[str, bytes], *, readable: bool = True) -> Preflight:
    """Check a deployment with its weights in a bucket of these files."""
    bucket = f"{site.clients.project}-weights"
    await store(site, bucket, below("gemma", files))
    if readable:
        await advance((checks.reader(site, bucket),), seconds=5)
    return await checks.preflight(site, planned(site, weights=f"gs://{bucket}/gemma"))


async def test_a_whole_model_passes_and_the_hub_is_no_matter(site: Site) -> None:
    found = await checked(site, model())
    assert {one.outcome for one in found.checks} == {"pass"}
    assert not [one for one in found.checks if "Hub" in one.what]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", ONE, TWO])
async def test_a_file_that_is_missing_fails(site: Site, name: str) -> None:
    files = {path: content for path, content in model().items() if path != name}
    failed = the_only_failure(await checked(site, files))
    assert "holds a whole model" in failed.what
    assert name.removesuffix(".json") in failed.detail


async def test_a_file_that_was_cut_off_fails_though_their_sum_is_large_enough(site: Site) -> None:
    whole = safetensors()
    padded = {**model(), ONE: whole[:-1], TWO: whole}
    failed = the_only_failure(await checked(site, padded))
    assert ONE in failed.detail
    assert TWO not in failed.detail


async def test_a_pointer_of_git_lfs_fails(site: Site) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\n" + b"x" * 2000
    failed = the_only_failure(await checked(site, {**model(), TWO: pointer}))
    assert f"{TWO} is no safetensors file" in failed.detail


async def test_a_single_file_without_an_index_is_judged_by_its_header(site: Site) -> None:
    single = {"config.json": b"{}", "tokenizer.model": b"x", "model.safetensors": safetensors()}
    assert (await checked(site, single)).failed == ()


async def test_a_file_that_the_index_does_not_name_is_no_matter(site: Site) -> None:
    assert (await checked(site, {**model(), "old.safetensors": b"x"})).failed == ()


async def test_a_folder_that_is_not_there_fails(site: Site) -> None:
    bucket = f"{site.clients.project}-weights"
    await store(site, bucket, {})
    await advance((checks.reader(site, bucket),), seconds=5)
    plan = planned(site, weights=f"gs://{bucket}/nothing")
    failed = the_only_failure(await checks.preflight(site, plan))
    assert "No weights" in failed.detail


async def test_a_bucket_that_is_missing_fails(site: Site) -> None:
    plan = planned(site, weights=f"gs://{site.clients.project}-none/gemma")
    found = await checks.preflight(site, plan)
    assert [one for one in found.failed if "There is no bucket" in one.detail]


async def test_a_bucket_that_instances_may_not_read_fails(site: Site) -> None:
    failed = the_only_failure(await checked(site, model(), readable=False))
    assert "roles/storage.objectViewer" in failed.detail
    assert "BUCKET_NAME=" in failed.fix


async def test_an_index_that_names_nothing_fails(site: Site) -> None:
    failed = the_only_failure(await checked(site, {**model(), INDEX: b'{"weight_map": {}}'}))
    assert INDEX in failed.detail


async def test_a_gguf_model_cannot_be_judged_and_says_so(site: Site) -> None:
    found = await checked(site, {"model.gguf": b"GGUF"})
    unknown = [one for one in found.checks if one.outcome == "unknown"]
    assert [one.what for one in unknown] == [
        f"gs://{site.clients.project}-weights/gemma holds a whole model"
    ]
    assert "GGUF" in unknown[0].detail
