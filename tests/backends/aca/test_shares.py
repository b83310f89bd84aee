"""Models on the share: found wherever they lie, and each said to be whole or what it misses."""

import pytest

from backends.aca import storage
from core.errors import CloudRefused, CloudUnavailable
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.backends.aca.shelf import store
from tests.backends.aca.sites import opened
from tests.backends.shelf import below, model

pytestmark = pytest.mark.anyio


async def test_a_whole_model_is_found_with_its_size_and_name(
    azure: AzurePlane, subscription: str
) -> None:
    """On the share of the set-up, where no other is named."""
    files = model("google/gemma-3-4b-it")
    async with opened(azure, subscription) as site:
        await store(site, below("models/gemma", files))
        (found,) = await storage.list_models(site, None)
    assert found.location == "files://weights/models/gemma"
    assert found.model == "google/gemma-3-4b-it"
    assert found.files == len(files)
    assert found.size_bytes == sum(map(len, files.values()))
    assert found.complete is True


async def test_models_are_found_at_any_depth_and_other_files_are_not_models(
    azure: AzurePlane, subscription: str
) -> None:
    """In order of their names; what downloads keep for themselves is not looked at."""
    files = {
        **model(),
        **below("a/b/c/d", model()),
        **below("a/.cache/huggingface", model()),
        **below("hub/hub/models--google--gemma/snapshots/abc", model()),
        "notes/readme.txt": b"x",
        "data/train.json": b"{}",
        "quantized/m.gguf": b"GGUF",
    }
    async with opened(azure, subscription) as site:
        await store(site, files)
        found = await storage.list_models(site, "files://weights/")
    assert [(one.location, one.complete) for one in found] == [
        ("files://weights", True),
        ("files://weights/a/b/c/d", True),
        ("files://weights/quantized", None),
    ]


async def test_a_folder_of_a_share_can_be_asked_for(azure: AzurePlane, subscription: str) -> None:
    """Another that begins alike is not meant."""
    async with opened(azure, subscription) as site:
        await store(site, {**below("one", model()), **below("ones", model())})
        (found,) = await storage.list_models(site, "files://weights/one")
    assert found.location == "files://weights/one"


async def test_folders_beyond_a_number_are_said_not_to_be_looked_at(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is one of them."""
    monkeypatch.setattr(storage, "_MOST_FOLDERS", 2)
    async with opened(azure, subscription) as site:
        await store(site, {"a/config.json": b"{}", "b/config.json": b"{}"})
        with collecting_notes() as notes:
            assert len(await storage.list_models(site, None)) == 1
    assert "more than 2 folders" in notes[0]


async def test_a_share_that_is_missing_says_how_to_make_it(
    azure: AzurePlane, subscription: str
) -> None:
    """By the tool, with the target."""
    async with opened(azure, subscription, "aca-t4") as site:
        with pytest.raises(CloudRefused, match="The share nothing is not there") as refused:
            await storage.list_models(site, "nothing")
    assert "setup_target" in refused.value.fix
    (step,) = refused.value.next_steps
    assert (step.tool, step.arguments) == ("setup_target", {"target": "aca-t4"})


async def test_a_folder_that_is_missing_is_named(azure: AzurePlane, subscription: str) -> None:
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudRefused, match="The folder gemma of the share weights"):
            await storage.list_models(site, "weights/gemma")


async def test_an_account_that_is_missing_is_said_to_be(
    azure: AzurePlane, bare_subscription: str
) -> None:
    """Not that Azure cannot be reached, though its name leads nowhere."""
    async with opened(azure, bare_subscription) as site:
        with pytest.raises(CloudRefused, match=site.ground.storage_account) as refused:
            await storage.list_models(site, None)
    assert "setup_target" in refused.value.fix


async def test_a_name_that_leads_nowhere_is_an_account_that_is_missing(
    azure: AzurePlane, bare_subscription: str
) -> None:
    """In the real world an account has an address only while it is there."""
    silent = azure.model_copy(update={"storage": "https://127.0.0.1:9"})
    async with opened(silent, bare_subscription) as site:
        with pytest.raises(CloudRefused, match="It is not there"):
            await storage.list_models(site, None)


async def test_an_account_that_is_there_and_silent_is_unavailable(
    azure: AzurePlane, subscription: str
) -> None:
    silent = azure.model_copy(update={"storage": "https://127.0.0.1:9"})
    async with opened(silent, subscription) as site:
        with pytest.raises(CloudUnavailable):
            await storage.list_models(site, None)
