"""Set-up opens the bucket that is named and keeps the token that is set, and no others."""

from typing import Any

import anyio
import pytest
from google.api_core.iam import Policy

from backends.cloud_run import checks
from backends.cloud_run.checks import shared
from backends.cloud_run.site import Site
from backends.google.clients import runtime_account
from backends.lifecycle import set_up, setup
from core.errors import CloudRefused
from core.settings import GooglePlane
from tests.backends.cloud_run.shelf import store
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

TOKEN = "hf_secretword"


def account(project: str) -> str:
    return f"serviceAccount:{runtime_account(project)}"


async def bucket_policy(site: Site, bucket: str) -> Any:
    client = await site.clients.storage()
    there = client.bucket(bucket)
    return await anyio.to_thread.run_sync(lambda: there.get_iam_policy(requested_policy_version=3))


async def test_only_the_bucket_that_is_named_is_opened_to_the_runtime_account(
    plane: GooglePlane, project: str
) -> None:
    bucket, other = f"{project}-one", f"{project}-two"
    async with opened(plane, project, bucket_name=bucket) as site:
        await store(site, bucket, {})
        await store(site, other, {})
        assert len((await setup(shared(site))).missing) == 1
        assert (await set_up(shared(site), seconds=30)).missing == ()
        mine, others = [await bucket_policy(site, name) for name in (bucket, other)]
    granted = [one for one in mine.bindings if account(project) in one["members"]]
    assert [one["role"] for one in granted] == ["roles/storage.objectViewer"]
    assert all(account(project) not in one["members"] for one in others.bindings)


async def test_what_others_may_do_with_the_bucket_stays(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, bucket_name=project) as site:
        await store(site, project, {})
        policy = await bucket_policy(site, project)
        theirs = {
            "role": "roles/storage.objectViewer",
            "members": {account(project)},
            "condition": {"title": "t", "expression": "resource.name.startsWith('x')"},
        }
        policy.version, before = 3, [*policy.bindings, theirs]
        policy.bindings = before
        client = await site.clients.storage()
        there = client.bucket(project)
        await anyio.to_thread.run_sync(there.set_iam_policy, policy)
        assert (await set_up(shared(site), seconds=30)).missing == ()
        after = await bucket_policy(site, project)
    assert all(one in after.bindings for one in before)
    assert len(after.bindings) == len(before) + 1


async def test_a_bucket_that_is_missing_is_named_and_the_rest_is_done(
    plane: GooglePlane, bare_project: str
) -> None:
    async with opened(plane, bare_project, bucket_name=f"{bare_project}-no") as site:
        with pytest.raises(CloudRefused) as failed:
            await set_up(shared(site), seconds=30)
    assert len(failed.value.data["done"]) == 7
    assert "buckets create" in failed.value.fix


async def test_another_token_than_the_kept_one_is_a_step_to_do(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    async with opened(plane, project, hf_token=TOKEN) as site:
        await set_up(shared(site), seconds=30)
    async with opened(plane, project, hf_token="hf_other") as site:
        assert len((await setup(shared(site))).missing) == 1
        assert (await set_up(shared(site), seconds=30)).missing == ()
    assert controls.get(project)["secrets"]["hf-token"]["versions"] == 2


async def test_the_token_is_in_no_word_of_it(plane: GooglePlane, bare_project: str) -> None:
    async with opened(plane, bare_project, hf_token=TOKEN) as site:
        assert TOKEN not in repr(await set_up(shared(site), seconds=30))


def test_a_reader_joins_those_who_have_the_role_and_conditions_are_kept() -> None:
    policy = Policy(etag="one", version=1)
    policy.bindings = [{"role": checks._READER, "members": {"user:a@example.com"}}]
    checks.add_to_policy(policy, "serviceAccount:me@p")
    (binding,) = policy.bindings
    assert binding["members"] == {"user:a@example.com", "serviceAccount:me@p"}
    assert (policy.etag, policy.version) == ("one", 3)
