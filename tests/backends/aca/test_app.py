"""A blueprint as Azure's SDK types it, and what only who applies knows."""

from typing import Any

import pytest

from backends.aca import container
from backends.aca.app import app_of, ingress_of
from backends.aca.site import as_sent
from core.errors import InvalidArgument
from tests.backends.aca.planned import (
    A100,
    CALLERS,
    FOLDER,
    VAULT,
    drawn,
    planned,
    sent,
    site,
    small,
)


def _configuration(**said: Any) -> dict[str, Any]:
    found: dict[str, Any] = sent(**said)["properties"]["configuration"]
    return found


def test_azure_looks_for_the_proxy_and_the_proxy_for_the_engine() -> None:
    """On another address, or another port, no probe ever succeeds; the engine has no other."""
    body = sent()
    container, proxy = body["properties"]["template"]["containers"]
    words, port = container["args"], body["properties"]["configuration"]["ingress"]["targetPort"]
    (configuration,) = [one["value"] for one in proxy["env"]]
    assert f"listen {port};" in configuration
    assert words[words.index("--host") + 1] == "127.0.0.1"
    engine = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    assert f"location /v1/ {{ proxy_pass {engine}/v1/; }}" in configuration


def test_secrets_are_references_to_the_vault() -> None:
    """No value is sent, so that none can be lost by a later change, or read back."""
    opened = site(A100, hf_token="hf_secret")
    made = drawn(opened)
    body = as_sent(app_of(made, kept_at=VAULT, addresses=CALLERS))
    secrets = {one["name"]: one for one in body["properties"]["configuration"]["secrets"]}
    assert secrets["api-key"]["keyVaultUrl"] == f"{VAULT}/secrets/vllm-devops-gemma-api-key"
    assert secrets["hf-token"]["keyVaultUrl"] == f"{VAULT}/secrets/hf-token"
    assert {one["identity"] for one in secrets.values()} == {made.ground.identity_id}
    assert not any("value" in one for one in secrets.values())
    container, _ = body["properties"]["template"]["containers"]
    refs = {env["name"]: env["secretRef"] for env in container["env"] if "secretRef" in env}
    assert refs == {"VLLM_API_KEY": "api-key", "HF_TOKEN": "hf-token"}
    assert list(body["identity"]["userAssignedIdentities"]) == [made.ground.identity_id]


def test_what_runs_in_the_container_cannot_act_as_its_identity() -> None:
    """A model's own code could read every deployment's key with it."""
    (setting,) = _configuration()["identitySettings"]
    assert setting == {"identity": drawn().ground.identity_id, "lifecycle": "None"}


def test_a_ttl_is_a_tag() -> None:
    """When it ends is known by who applies alone, and a plan stays the same every time."""
    body = as_sent(app_of(drawn(), kept_at=VAULT, addresses=CALLERS, expires_at=1_700_000_000))
    assert body["tags"]["vllm-devops-expires"] == "1700000000"
    assert "vllm-devops-expires" not in sent()["tags"]


def test_an_azure_registry_is_pulled_from_with_the_identity() -> None:
    """A6: the app's own identity exists only after its first pull would have failed."""
    (registry,) = _configuration(image="mine.azurecr.io/vllm:1")["registries"]
    assert registry == {"server": "mine.azurecr.io", "identity": drawn().ground.identity_id}
    assert "registries" not in _configuration()
    assert "registries" not in _configuration(image="ghcr.io/me/azurecr.io:1")


@pytest.mark.parametrize(
    ("access", "external", "restricted"),
    [("private", True, True), ("public", True, False), ("internal", False, False)],
)
def test_who_reaches_it_is_what_was_asked_for(
    access: str, *, external: bool, restricted: bool
) -> None:
    """Restrictions are for the private one; the internal one has no address outside."""
    ingress = _configuration(access=access)["ingress"]
    assert ingress["external"] is external
    assert ("ipSecurityRestrictions" in ingress) == restricted


def test_a_private_app_never_lets_everybody_in() -> None:
    """An ingress without restrictions is open: without an address nothing is sent."""
    with pytest.raises(InvalidArgument, match="Nobody's address") as refused:
        app_of(drawn(), kept_at=VAULT)
    assert "AZURE_ALLOWED_ADDRESSES" in refused.value.fix
    assert ingress_of(drawn(access="public"), ()).ip_security_restrictions is None


def test_more_addresses_than_are_sensible_are_refused() -> None:
    """Ranges are what they are for."""
    most = container.rules().limits.addresses
    many = tuple(f"203.0.113.{number}/32" for number in range(most + 1))
    assert ingress_of(drawn(), many[:most]).ip_security_restrictions is not None
    with pytest.raises(InvalidArgument, match="more than"):
        ingress_of(drawn(), many)


def test_a_folder_of_a_share_is_mounted_by_its_own_link() -> None:
    """The link opens it for reading alone."""
    template = sent(weights=FOLDER)["properties"]["template"]
    (volume,), (container, _) = template["volumes"], template["containers"]
    assert volume["storageName"] == "weights-ro"
    assert volume["mountOptions"] == "mfsymlinks"
    assert container["volumeMounts"] == [{"volumeName": volume["name"], "mountPath": "/weights"}]
    assert container["args"][1] == "/weights/models/gemma"
    names = container["args"]
    assert names[names.index("--served-model-name") + 1] == "google/gemma-4-E4B-it"


def test_revisions_take_turns_and_few_are_kept() -> None:
    """One at a time, or each of them has a GPU."""
    configuration = _configuration()
    assert configuration["activeRevisionsMode"] == "Single"
    assert configuration["maxInactiveRevisions"] == 2


def test_processors_and_memory_are_what_is_asked_for_within_the_profile() -> None:
    """Less costs less, and may be refused; more is refused before Azure is asked."""
    whole, less = planned(**small()), planned(**small(cpu=8, memory_gib=56))
    containers = sent(**small(cpu=8, memory_gib=56))["properties"]["template"]["containers"]
    sizes = [one["resources"] for one in containers]
    assert sum(one["cpu"] for one in sizes) == 8
    assert sum(int(one["memory"].removesuffix("Gi")) for one in sizes) == 56
    assert (less.usd_per_hour or 0) < (whole.usd_per_hour or 0)
    assert any("leave cpu and memory_gib out" in each for each in less.warnings)
    assert not any("memory_gib" in each for each in whole.warnings)
    for said in ({"cpu": 25}, {"memory_gib": 221}, {"cpu": 7.5}, {"memory_gib": 1}):
        with pytest.raises(InvalidArgument, match="at most 24 and 220"):
            drawn(**small(**said))
