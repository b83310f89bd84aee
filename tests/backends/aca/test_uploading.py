"""Commands that put a model on the share: what a person pastes works, and no key is in it."""

import shlex

import pytest

from backends.aca import storage
from backends.aca.storage import Place
from core.errors import InvalidArgument, NotConfigured
from core.settings import AzurePlane
from tests.backends.aca.sites import opened
from tests.operations.shells import assert_shell

pytestmark = pytest.mark.anyio


async def test_every_command_is_one_that_a_shell_reads(azure: AzurePlane) -> None:
    """Whatever the folder's name is."""
    async with opened(azure, "s") as site:
        made = storage.upload_commands(site, "a model's $(x)", "./a model's $(x)", None)
    for _what, command in made.steps:
        assert_shell(command)


async def test_the_folder_is_where_weights_read_it(azure: AzurePlane) -> None:
    """On the share of the set-up, in an account named after the subscription."""
    async with opened(azure, "s") as site:
        made = storage.upload_commands(site, "gemma", "./gemma", None)
        account = site.ground.storage_account
    assert made.location == "files://weights/gemma"
    assert made.bucket == "files://weights"
    copied = next(shlex.split(words) for _, words in made.steps if "azcopy" in words)
    assert copied[3:5] == ["./gemma/*", f"https://{account}.file.core.windows.net/weights/gemma"]


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
