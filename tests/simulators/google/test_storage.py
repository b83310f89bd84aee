"""The simulated Cloud Storage, asked by Google's own client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from anyio.abc import TaskGroup
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials

from simulators.google.state import World
from simulators.google.storage import Storage

_READ_ALL = {"role": "roles/storage.objectViewer", "members": {"allUsers"}}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One in which nothing goes on by itself."""
    return World(folder=tmp_path, tasks=cast("TaskGroup", None))


@pytest.fixture
def bucket(world: World) -> Iterator[Any]:
    """A bucket of project p-one with one model's folder."""
    server = Storage(world.folder / "storage", world)
    client = _client(server.start())
    bucket = client.create_bucket("models")
    bucket.blob("gemma/config.json").upload_from_string("{}")
    bucket.blob("gemma/model.safetensors").upload_from_string("12345678")
    yield bucket
    client.close()
    server.stop()


def _client(url: str) -> Any:
    from google.cloud.storage import Client  # noqa: PLC0415  it takes a second

    return Client("p-one", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})


def test_what_was_put_is_listed_with_its_size(bucket: Any) -> None:
    """Below a folder."""
    listed = bucket.client.list_blobs("models", prefix="gemma/")
    assert {one.name: one.size for one in listed} == {
        "gemma/config.json": 2,
        "gemma/model.safetensors": 8,
    }


def test_a_bucket_that_is_missing_is_not_found(bucket: Any) -> None:
    """As in reality."""
    with pytest.raises(exceptions.NotFound):
        list(bucket.client.list_blobs("nothing", retry=None))


def test_a_bucket_outlives_its_server(bucket: Any, world: World) -> None:
    """A server that is started anew knows it."""
    again = Storage(world.folder / "storage", world)
    client = _client(again.start())
    assert next(iter(client.list_blobs("models"))).name == "gemma/config.json"
    client.close()
    again.stop()


def test_whoever_may_not_list_is_refused(bucket: Any, world: World) -> None:
    """By the project that the bucket belongs to."""
    owner = world.project("p-one")
    owner.knobs = owner.knobs.model_copy(update={"denied_permissions": ("storage.objects.list",)})
    with pytest.raises(exceptions.Forbidden, match=r"storage\.objects\.list"):
        list(bucket.client.list_blobs("models"))
    assert bucket.blob("gemma/config.json").download_as_bytes() == b"{}"
    assert "storage.objects.list" in owner.calls


def test_a_policy_is_replaced_only_by_who_read_it_last(bucket: Any) -> None:
    """A second writer with the etag of before is refused."""
    mine, theirs = bucket.get_iam_policy(), bucket.get_iam_policy()
    theirs.bindings.append(_READ_ALL)
    bucket.set_iam_policy(theirs)
    mine.bindings.append(_READ_ALL)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.set_iam_policy(mine, retry=None)
    assert len(bucket.get_iam_policy().bindings) == 1
