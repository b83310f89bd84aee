"""What vLLM compiles on Cloud Run is carried in a bucket: where, for whom, and until when."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import anyio
import httpx2
import pytest
from google.cloud.storage import Blob, Bucket

from simulators.google.grants import AS
from tests.backends.cloud_run import sites
from tests.backends.cloud_run.shelf import store
from tests.conversation import Reply, agent_of
from tests.planes import NO_TLS
from tests.soon import soon, until
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

TARGET: Final = "cloud-run-l4"
FOLDER: Final = "vllm-devops-cache/one/us-east4/"
QUICK: Final = {"SIMULATED_ENGINE_TIME_SCALE": "0"}
SLOW: Final = json.dumps({"loading": 1.5, "compiling": 2.5})
OTHERS: Final = {
    "gemma/model.safetensors": b"weights",
    "vllm-devops-cache/one/us-east4/notes.txt": b"not the engine's",
    "vllm-devops-cache/one-more/us-east4/0123456789abcdef.tar": b"of one-more",
}


class Place(NamedTuple):
    """A bucket, and an agent whose BUCKET_NAME it is."""

    life: Life
    cloud: Cloud
    bucket: str

    async def on_bucket(self, work: Callable[[Bucket], Any]) -> Any:
        """Do something with the bucket, as its owner."""
        async with sites.opened(self.cloud.controls.plane, self.cloud.project) as site:
            client = await site.clients.storage()
            return await anyio.to_thread.run_sync(lambda: work(client.get_bucket(self.bucket)))

    async def names(self) -> set[str]:
        """Return what is in it."""
        found: list[Blob] = await self.on_bucket(lambda there: list(there.list_blobs()))
        return {one.name for one in found}

    async def bindings(self) -> Sequence[Mapping[str, Any]]:
        """Return who may write into it."""
        read = await self.on_bucket(lambda there: there.get_iam_policy(requested_policy_version=3))
        return [one for one in read.bindings if one["role"] == "roles/storage.objectUser"]

    async def said(self) -> list[str]:
        """Return what the program before the engine wrote, newest last."""
        found = await self.life.call("get_logs", lines=100, contains="compile-cache")
        return [line.partition("compile-cache: ")[2] for line in found.data["lines"]]

    async def says(self, last: str, *, after: int = 0) -> list[str]:
        """Wait until it says so last, in more than `after` lines; a file is there before that."""
        return await soon(
            self.said,
            lambda said: len(said) > after and said[-1].startswith(last),
            waiting_for=f"the word {last}",
        )

    async def saved(self) -> None:
        """Wait until what was compiled is there."""
        what = "the compile cache"
        await soon(self.names, OTHERS.keys().__lt__, waiting_for=what)


@asynccontextmanager
async def placed(cloud: Cloud, *, folder: str = "weights", **settings: Any) -> AsyncIterator[Place]:
    bucket = f"{cloud.project}-{folder}"
    async with sites.opened(cloud.controls.plane, cloud.project) as site:
        await store(site, bucket, OTHERS)
    own = cloud.settings.model_copy(update={"bucket_name": bucket, **settings})
    async with agent_of(own) as agent:
        yield Place(Life(agent, TARGET), cloud, bucket)


@pytest.fixture
async def place(cloud: Cloud) -> AsyncIterator[Place]:
    async with placed(cloud) as found:
        yield found


async def test_a_second_boot_loads_what_the_first_compiled(place: Place) -> None:
    """Its key is that of its flags: with another length it compiles again."""
    place.cloud.set(engine_environment={**QUICK, "SIMULATED_ENGINE_BOOT_PHASES": SLOW})
    before = await place.bindings()
    plan = await place.life.agent.call("plan_deployment", model=MODEL, target=TARGET)
    assert f"gs://{place.bucket}/vllm-devops-cache/" in str(plan.structured["warnings"]), plan
    await place.life.begins(max_model_len=4096)
    await place.saved()
    cold = await place.life.call("status_vllm")
    first = await place.says("saved ")
    assert [one.partition(" ")[0] for one in first] == ["none", "saved"]
    (made,) = [one for one in await place.bindings() if one not in before]
    assert FOLDER in made["condition"]["expression"]
    await place.life.sleeps_and_wakes()
    await soon(
        lambda: place.life.call("status_vllm"),
        lambda warm: compiled(warm) < compiled(cold),
        waiting_for="the wake's phases",
    )
    assert (await place.said())[-1].startswith("carried ")
    assert len(await place.names() - OTHERS.keys()) == 1
    await place.life.call("deploy_vllm", model=MODEL, max_model_len=2048)
    await place.life.becomes("ready")
    assert (await place.says("saved ", after=len(first) + 1))[-2].startswith("none for ")
    gone = await place.life.call("destroy_vllm")
    assert gone.data["gone"]
    assert any("compile cache" in one for one in gone.data["removed"])
    assert any("soft delete" in one for one in gone.structured["warnings"])
    assert await place.names() == OTHERS.keys()
    assert await place.bindings() == before


async def test_what_was_carried_in_another_bucket_is_left_over(place: Place) -> None:
    """Its deployment lives, and carries elsewhere by now: what is there is of no use any more."""
    await place.life.begins(max_model_len=4096)
    await place.saved()
    async with placed(place.cloud, folder="moved") as moved:
        assert (await moved.life.call("status_vllm")).state == "ready"
        await moved.life.call("deploy_vllm", model=MODEL, max_model_len=2048)
        await moved.life.becomes("ready")
        await moved.saved()
        look: dict[str, Any] = {"leftovers": True, "target": TARGET}
        found = await moved.life.agent.call("get_system_status", **look)
        own = [row for row in found.data["leftovers"] if row["deployment"] == "one"]
        assert [row["id"] for row in own] == [f"gs://{place.bucket}/{FOLDER}"], found
        assert "carries what it compiles elsewhere" in own[0]["why"]
        gone = await moved.life.agent.call("destroy_vllm", target=TARGET, leftover=own[0]["id"])
        assert gone.data["gone"], gone
        assert await place.names() == OTHERS.keys()
        assert len(await moved.names() - OTHERS.keys()) == 1
        assert (await moved.life.call("verify_model_health")).data["healthy"]
        await moved.life.call("destroy_vllm")


async def _prices_are_those_of_the_location(place: Place) -> None:
    """Of a region, of many and of a pair; a file of 64 MiB makes the difference."""
    large = f"{FOLDER}{'f' * 16}.tar"
    await place.on_bucket(lambda there: there.blob(large).upload_from_string(b"x" * 2**26))
    sizes = await place.on_bucket(lambda there: [b.size for b in there.list_blobs(prefix=FOLDER)])
    for where, usd in (("EUROPE-WEST4", 0.02), ("US-EAST4", 0.023), ("EU", 0.026), ("NAM4", 0.044)):

        def move(there: Bucket, where: str = where) -> None:
            there._patch_property("location", where)
            there.patch()

        await place.on_bucket(move)
        left = await place.life.agent.call("get_system_status", leftovers=True, target=TARGET)
        (one,) = [row for row in left.data["leftovers"] if row["id"].endswith(FOLDER)]
        assert one["usd_per_month"] == pytest.approx(sum(sizes) / 2**30 * usd, abs=6e-5), where
    await place.on_bucket(lambda there: there.blob(large).delete())


def compiled(status: Reply) -> float:
    """Return how long the last boot compiled, in seconds."""
    words = status.data["last_boot"]
    return float(words.partition("compile ")[2].partition(" ")[0]) if "compile" in words else 0.0


async def test_the_cache_stays_where_it_is_told_to_and_is_then_left_over(place: Place) -> None:
    """It is named with its price, found by a look, and removed with nothing beside it."""
    await place.life.begins(max_model_len=4096)
    await place.saved()
    gone = await place.life.call("destroy_vllm", keep_cache=True)
    (kept,) = [one for one in gone.data["stays"] if "compile cache" in one["what"]]
    assert (kept["usd_per_month"] > 0, place.bucket in kept["what"]) == (True, True), gone
    assert len(await place.names() - OTHERS.keys()) == 1
    assert not await place.bindings()
    found = await place.life.agent.call("get_system_status", leftovers=True, target=TARGET)
    caches = [one for one in found.data["leftovers"] if one["kind"] == "compile cache"]
    assert [one["deployment"] for one in caches] == ["one", "one-more"], found
    await _prices_are_those_of_the_location(place)
    one = await place.life.agent.call("destroy_vllm", target=TARGET, leftover=caches[0]["id"])
    assert one.data["gone"], one
    assert await place.names() == OTHERS.keys()
    again = await place.life.agent.call("destroy_vllm", purge=True, keep_cache=True, target=TARGET)
    assert again.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("settings", "knobs", "words"),
    [
        ({"bucket_name": None}, {}, "BUCKET_NAME"),
        ({}, {"denied_permissions": ["storage.buckets.setIamPolicy"]}, "add-iam-policy-binding"),
        ({}, {"denied_permissions": ["storage.buckets.get"]}, "storage.buckets.get"),
        ({"bucket_name": "nobody-has-this"}, {}, "There is no bucket"),
    ],
    ids=["no bucket", "may not grant", "may not look", "bucket is missing"],
)
async def test_without_a_place_or_a_right_it_is_served_all_the_same(
    cloud: Cloud, settings: Mapping[str, Any], knobs: Mapping[str, Any], words: str
) -> None:
    """The answer says what is missing, once; the engine starts without the program before it."""
    async with placed(cloud, **settings) as place:
        cloud.set(**knobs)
        made = await place.life.call("deploy_vllm", model=MODEL, max_model_len=4096)
        said = [one for one in made.structured["warnings"] if "carried" in one and words in one]
        assert len(said) == 1, made
        await place.life.becomes("ready")
        assert await place.said() == []
        assert (await place.life.call("destroy_vllm")).data["gone"]
        cloud.set(denied_permissions=[])
        assert await place.names() == OTHERS.keys()


async def test_a_bucket_without_uniform_access_carries_nothing(place: Place) -> None:
    """A condition on names takes it; the whole bucket is not opened instead."""

    def by_object(there: Bucket) -> None:
        there.iam_configuration.uniform_bucket_level_access_enabled = False
        there.patch()

    await place.on_bucket(by_object)
    made = await place.life.call("deploy_vllm", model=MODEL, max_model_len=4096)
    assert "uniform bucket-level access" in str(made.structured["warnings"])
    await place.life.becomes("ready")
    assert not await place.bindings()


async def test_the_engines_account_has_its_own_cache_and_no_weights_to_write(place: Place) -> None:
    """What it may do, object by object, as Cloud Storage judges its condition."""
    await place.life.begins(max_model_len=4096)
    await place.saved()
    (own,) = await place.names() - OTHERS.keys()
    weights, beside = "gemma/model.safetensors", "vllm-devops-cache/two/us-east4/new.tar"
    for verb, name, status in (
        ("GET", own, 200),
        ("GET", f"{FOLDER}missing.tar", 404),  # the role that reads weights lists as well
        ("POST", f"{FOLDER}new.tar", 200),
        ("POST", own, 412),
        ("POST", beside, 403),
        ("POST", weights, 403),
        ("DELETE", weights, 403),
        ("DELETE", own, 200),
    ):
        assert await asked(place, verb, name) == status, (verb, name)


async def asked(place: Place, verb: str, name: str) -> int:
    """Return what Cloud Storage answers the account that deployments run as."""
    url, path = place.cloud.controls.plane.storage, quote(name, safe="")
    account = f"vllm-devops-runtime@{place.cloud.project}.iam.gserviceaccount.com"
    where = f"/storage/v1/b/{place.bucket}/o/{path}"
    if verb == "POST":
        how = f"uploadType=media&name={path}&ifGenerationMatch=0"
        where = f"/upload/storage/v1/b/{place.bucket}/o?{how}"
    async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        reply = await client.request(verb, url + where, headers={AS: account}, content=b"x")
    return reply.status_code


async def test_what_a_bucket_keeps_is_said_to_remain(place: Place) -> None:
    """Its retention policy is not touched, and the deployment is gone all the same."""

    def hold(there: Bucket) -> None:
        there.retention_period = 86400
        there.patch()

    await place.on_bucket(hold)
    await place.life.begins(max_model_len=4096)
    await place.saved()
    (own,) = await place.names() - OTHERS.keys()
    gone = await place.life.call("destroy_vllm")
    assert gone.data["gone"]
    assert any(own in one and "remains" in one for one in gone.structured["warnings"]), gone
    assert own in await place.names()


@pytest.mark.usefixtures("every_cloud")
async def test_a_server_that_dies_after_the_grant_leaves_no_right_behind(
    cloud: Cloud, tmp_path: Path
) -> None:
    """Whoever looks elsewhere finds it; the next one here takes all of it away."""
    async with placed(cloud) as place:
        cloud.set(faults=[{"method": "*CreateService", "when": "hang", "status": "UNAVAILABLE"}])
        async with anyio.create_task_group() as tasks:
            deploy = partial(place.life.call, model=MODEL, max_model_len=4096)
            tasks.start_soon(deploy, "deploy_vllm")
            seen = cloud.controls.get
            await until(lambda: any("CreateService" in x for x in seen(cloud.project)["calls"]))
            tasks.cancel_scope.cancel()
        assert await place.bindings()
        cloud.set(faults=[])
        own = cloud.settings.model_copy(update={"bucket_name": place.bucket})
        other = own.model_copy(update={"vllm_devops_state_dir": tmp_path / "elsewhere"})
        async with agent_of(other) as agent:
            found = await agent.call("get_system_status", leftovers=True, target=TARGET)
        caches = [one for one in found.data["leftovers"] if one["kind"] == "compile cache"]
        assert {one["deployment"] for one in caches} == {"one", "one-more"}, found
        async with agent_of(own) as agent:
            gone = await Life(agent, TARGET).call("destroy_vllm")
        assert gone.data["gone"], gone
        assert not await place.bindings()
    assert cloud.is_empty()
