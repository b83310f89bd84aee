"""Models on the share: found, judged whole or not, refused, and copied there."""

from collections.abc import Mapping

import pytest

from backends.aca import storage
from backends.aca.storage import Place
from backends.common.models import Completeness
from core.errors import (
    CloudError,
    CloudRefused,
    CloudUnavailable,
    InvalidArgument,
    NotAuthenticated,
    NotConfigured,
    PermissionDenied,
)
from core.records import Check
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.preflights import checked
from tests.backends.aca.sites import fault, opened, store
from tests.backends.shelf import INDEX, ONE, TWO, below, model, safetensors

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, NotAuthenticated),
        (403, PermissionDenied),
        (400, CloudRefused),
        (429, CloudUnavailable),
        (503, CloudUnavailable),
    ],
)
async def test_what_storage_refuses_is_a_coded_error(
    azure: AzurePlane,
    subscription: str,
    controls: Controls,
    status: int,
    error: type[CloudError],
) -> None:
    """With Azure's own words as the cause."""
    controls.set(subscription, faults=[fault("*", status, times=9)])
    async with opened(azure, subscription) as site:
        with pytest.raises(error) as refused:
            await storage.list_models(site, None)
    assert refused.value.fix
    assert refused.value.cause


@pytest.mark.parametrize("status", [500, 503])
async def test_a_hiccup_is_asked_again(
    azure: AzurePlane, subscription: str, controls: Controls, status: int
) -> None:
    """Twice, at once: looking changes nothing."""
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", model()))
        controls.set(subscription, faults=[fault("*", status, times=2)])
        assert len(await storage.list_models(site, None)) == 1


async def test_whoever_may_not_read_learns_which_role_to_ask_for(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """By name, with the account as its scope."""
    controls.set(subscription, faults=[fault("*", 403, times=9)])
    async with opened(azure, subscription) as site:
        with pytest.raises(PermissionDenied) as refused:
            await storage.list_models(site, None)
        assert f"--role '{storage.READS_SHARES.title}'" in refused.value.fix
        assert site.ground.storage_id in refused.value.fix


LOCATION = "files://weights/gemma"


async def judged(azure: AzurePlane, subscription: str, files: Mapping[str, bytes]) -> Completeness:
    """Judge a folder that holds these files."""
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", files))
        return await storage.judge_model(site, LOCATION)


async def row(azure: AzurePlane, subscription: str, weights: str = LOCATION) -> Check:
    """Give the row of a preflight."""
    async with opened(azure, subscription) as site:
        found = await checked(site, weights=weights)
    return next(one for one in found.checks if "holds a whole model" in one.what)


async def test_a_file_that_was_cut_off_is_seen_though_their_sum_is_large_enough(
    azure: AzurePlane, subscription: str
) -> None:
    """By the file's own header, which is read and nothing else of it."""
    whole = safetensors()
    found = await judged(azure, subscription, {**model(), ONE: whole[:-1], TWO: whole})
    assert found.complete is False
    assert ONE in found.detail
    assert TWO not in found.detail


async def test_a_whole_model_passes_the_preflight(azure: AzurePlane, subscription: str) -> None:
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", model()))
    found = await row(azure, subscription)
    assert (found.outcome, found.fix) == ("pass", "")
    assert found.what == f"{LOCATION} holds a whole model"


async def test_a_model_that_is_not_whole_fails_the_preflight(
    azure: AzurePlane, subscription: str
) -> None:
    """With the tool that gives the commands to copy it."""
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", {**model(), INDEX: b'{"weight_map": {}}'}))
    found = await row(azure, subscription)
    assert found.outcome == "fail"
    assert INDEX in found.detail
    assert "get_huggingface_model_copy_instructions" in found.fix


@pytest.mark.parametrize("weights", [LOCATION, "files://nothing/gemma"])
async def test_a_place_that_is_not_there_fails_the_preflight(
    azure: AzurePlane, subscription: str, weights: str
) -> None:
    found = await row(azure, subscription, weights)
    assert found.outcome == "fail"
    assert found.fix


async def test_a_share_that_may_not_be_read_leaves_it_unknown(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Apps read it by the account's key, so it may be whole all the same."""
    controls.set(subscription, faults=[fault("*", 403, times=99)])
    found = await row(azure, subscription)
    assert found.outcome == "unknown"
    assert "Storage File Data Privileged Reader" in found.fix


async def test_a_share_and_a_folder_may_be_named(azure: AzurePlane) -> None:
    """As files://SHARE/FOLDER; a blank in it is no end of the address."""
    async with opened(azure, "s", azure_storage_account="mine") as site:
        made = storage.upload_commands(site, "gemma", "./gemma", "files://others/it q/")
    assert made.location == "files://others/it q"
    words = " ".join(command for _, command in made.steps)
    assert "https://mine.file.core.windows.net/others/it%20q" in words


async def test_no_key_is_asked_for_or_given(azure: AzurePlane) -> None:
    """Whoever is logged in copies, by a role that is named."""
    async with opened(azure, "s") as site:
        made = storage.upload_commands(site, "gemma", "./gemma", None)
    words = " ".join(command for _, command in made.steps).lower()
    assert not [each for each in ("account-key", "sas", "connection-string") if each in words]
    assert "Storage File Data Privileged Contributor" in made.notes[0]


async def test_without_a_subscription_the_account_is_not_known(azure: AzurePlane) -> None:
    """It would be another one's: its name is made of the subscription's id."""
    async with opened(azure, "s") as site:
        settings = site.settings.model_copy(update={"azure_subscription_id": None})
        site.clients._world = site.clients._world._replace(settings=settings, azure=None)
        with pytest.raises(NotConfigured):
            storage.upload_commands(site, "gemma", "./gemma", None)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("weights", Place("weights", "")),
        ("weights/a/b/", Place("weights", "a/b")),
        ("files://weights/a b", Place("weights", "a b")),
    ],
)
def test_places_are_read_as_people_write_them(said: str, place: Place) -> None:
    assert storage.parse_location(said) == place


@pytest.mark.parametrize(
    "said",
    [
        "", "We", "ab", "a--b", "-ab", "weights/../other", "a/./b", "gs://weights/a",
        "files://", "files:///a", "blob://models", "weights/a\\b", "weights/a\nb", "x" * 64,
    ],
)  # fmt: skip
def test_what_azure_cannot_mean_is_refused(said: str) -> None:
    """Before it is put into an address."""
    with pytest.raises(InvalidArgument, match="no place that Azure keeps weights in"):
        storage.parse_location(said)
