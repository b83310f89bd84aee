"""Every body of a plan is one that Microsoft's own schema knows, made strict."""

import sys
from typing import Any, Final

import pytest

from backends.aca.ground import environment_of
from backends.aca.site import as_sent
from backends.aca.storage import Link, link_body
from tests.backends.aca import armschema
from tests.backends.aca.planned import A100, DENSE_31B, FOLDER, PATCHED, T4, sent, site, small

_WISHES: Final[list[dict[str, Any]]] = [
    small(),
    small(weights=FOLDER, access="public"),
    small(weights="baked", image="mine.azurecr.io/vllm:1", access="internal"),
    {"model": DENSE_31B, "image": PATCHED, "min_replicas": 1, "max_replicas": 3},
]
wishes = pytest.mark.parametrize("said", _WISHES, ids=["hub", "folder", "baked", "large"])


def test_the_schema_is_looked_for_beside_the_project() -> None:
    """Where it is not, nothing below this is collected, and the reason is written."""
    if not armschema.HERE:
        sys.stderr.write(f"{armschema.WHY_NOT}\n")
    assert armschema.WHY_NOT.endswith("shared/contracts/azure.")


if armschema.HERE:

    @pytest.mark.parametrize("target", [A100, T4])
    @wishes
    def test_an_app_is_one_that_the_schema_knows(target: str, said: dict[str, Any]) -> None:
        """A misspelt key, or a field of a preview, is refused by Azure or silently nothing."""
        assert armschema.faults("containerApps", sent(target, **said)) == []

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("template", "scale", "minReplica"), 0),
            (("template", "scale", "cooldownPeriod"), "900"),
            (("template", "containers", 0, "resources", "gpu"), 1),
            (("configuration", "activeRevisionsMode"), "single"),
            (("configuration", "ingress", "external"), 1),
            (("template", "containers", 0, "probes", 0, "httpGet", "port"), "8000"),
        ],
    )
    def test_the_schema_is_strict(path: tuple[Any, ...], value: object) -> None:
        """What it is to find is found: unknown keys, other types and other words."""
        body = sent(**small())
        at = body["properties"]
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        assert armschema.faults("containerApps", body)

    def test_an_environment_and_its_links_are_ones_that_the_schema_knows() -> None:
        """The profiles without counts, as serverless ones have none."""
        made = environment_of(site(T4), "guid", "key")
        assert armschema.faults("managedEnvironments", as_sent(made)) == []
        for read_only in (True, False):
            link = link_body(site(), Link("weights", read_only), key="key")
            assert armschema.faults("managedEnvironments_storages", as_sent(link)) == []
