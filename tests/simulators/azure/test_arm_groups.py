"""Resource groups, asked for by Microsoft's client."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.resource.resources import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.simulators.azure.container_apps import code_of, created, small

pytestmark = pytest.mark.anyio


async def test_a_group_is_there_once_it_is_made_in_whatever_letters(bare: Clients) -> None:
    groups = (await bare.resources()).resource_groups
    assert not await groups.check_existence("g")
    made = await groups.create_or_update(
        "g", M.ResourceGroup(location="Sweden Central", tags={"a": "b"})
    )
    assert (made.location, made.tags) == ("swedencentral", {"a": "b"})
    assert await groups.check_existence("G")
    assert (await groups.get("G")).name == "g"
    assert [one.name async for one in groups.list()] == ["g"]


async def test_a_group_is_made_again_with_other_tags_but_not_elsewhere(bare: Clients) -> None:
    groups = (await bare.resources()).resource_groups
    await groups.create_or_update("g", M.ResourceGroup(location="swedencentral"))
    again = await groups.create_or_update(
        "g", M.ResourceGroup(location="swedencentral", tags={"x": "y"})
    )
    assert again.tags == {"x": "y"}
    with pytest.raises(HttpResponseError) as refusal:
        await groups.create_or_update("g", M.ResourceGroup(location="eastus"))
    assert refusal.value.status_code == 409
    assert code_of(refusal.value) == "InvalidResourceGroupLocation"


@pytest.mark.parametrize(
    ("name", "tags", "code"),
    [
        ("ends.", {}, "InvalidResourceGroupName"),
        ("g", {"x": "y" * 257}, "InvalidTagValueLength"),
        ("g", {"a/b": "c"}, "InvalidTagName"),
        ("g", {f"t{n}": "v" for n in range(51)}, "InvalidTags"),
    ],
)
async def test_a_group_that_cannot_be_is_refused(
    bare: Clients, name: str, tags: dict[str, str], code: str
) -> None:
    groups = (await bare.resources()).resource_groups
    with pytest.raises(HttpResponseError) as refusal:
        await groups.create_or_update(name, M.ResourceGroup(location="eastus", tags=tags))
    assert code_of(refusal.value) == code


async def test_tags_of_a_group_are_patched(bare: Clients) -> None:
    groups = (await bare.resources()).resource_groups
    await groups.create_or_update("g", M.ResourceGroup(location="eastus", tags={"a": "b"}))
    patched = await groups.update("g", M.ResourceGroupPatchable(tags={"c": "d"}))
    assert patched.tags == {"c": "d"}


async def test_a_group_is_listed_with_what_is_in_it_and_goes_with_it(clients: Clients) -> None:
    await created(clients, small(clients))
    resources = await clients.resources()
    inside = [one.type async for one in resources.resources.list_by_resource_group(clients.group)]
    assert "Microsoft.App/containerApps" in inside
    assert "Microsoft.App/managedEnvironments" in inside
    await (await resources.resource_groups.begin_delete(clients.group)).result()
    apps = (await clients.apps()).container_apps
    with pytest.raises(ResourceNotFoundError) as refusal:
        await apps.get(clients.group, "gemma")
    assert code_of(refusal.value) == "ResourceGroupNotFound"
    assert [one async for one in apps.list_by_subscription()] == []


async def test_what_is_in_no_group_is_refused(bare: Clients) -> None:
    groups = (await bare.resources()).resource_groups
    for call in (groups.get("g"), groups.begin_delete("g")):
        with pytest.raises(ResourceNotFoundError) as refusal:
            await call
        assert code_of(refusal.value) == "ResourceGroupNotFound"
