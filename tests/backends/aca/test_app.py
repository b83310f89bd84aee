"""An app as Azure's SDK types it: images, tags, where it answers and who is let in."""

import string
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.mgmt.appcontainers.models import ContainerApp
from hypothesis import given, strategies
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.aca import app as access
from backends.aca.app import (
    app_of,
    expires_in,
    fingerprint_in,
    ingress_of,
    label,
    pinned,
    spec_in,
    tags_of,
    target_in,
    version,
)
from backends.aca.site import as_sent, is_ours
from backends.common import preflight
from core.errors import CloudRefused, InvalidArgument, NotFound, NotReady
from core.settings import AzurePlane
from tests.backends.aca.planned import (
    A100,
    CALLERS,
    FOLDER,
    PATCHED,
    VAULT,
    drawn,
    planned,
    sent,
    site,
    small,
    spec,
    typed,
)
from tests.backends.aca.planned import site as offline
from tests.backends.aca.planted import Planted, planting
from tests.backends.aca.sites import opened
from tests.webserver import serving

pytestmark = pytest.mark.anyio


def _configuration(**said: Any) -> dict[str, Any]:
    found: dict[str, Any] = sent(**said)["properties"]["configuration"]
    return found


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ({"weights": FOLDER}, ["prefetch"]),
        ({"weights": "hub:share"}, ["prefetch"]),
        ({"weights": "hub:disk"}, []),
        ({"weights": FOLDER, "engine_args": ("--safetensors-load-strategy=lazy",)}, ["lazy"]),
        ({"weights": FOLDER, "engine_args": ("--load-format", "runai_streamer")}, []),
        ({"weights": FOLDER, "image": PATCHED}, []),  # whose vLLM need not know the flag
    ],
)
def test_files_of_a_share_are_read_ahead_unless_the_caller_reads_them_otherwise(
    said: dict[str, Any], how: list[str]
) -> None:
    words = drawn(**said).container.args
    joined = " ".join(words).replace("--safetensors-load-strategy ", "--safetensors-load-strategy=")
    flag = "--safetensors-load-strategy="
    assert [word.removeprefix(flag) for word in joined.split() if word.startswith(flag)] == how


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
    body = as_sent(app_of(opened, made, kept_at=VAULT, addresses=CALLERS))
    secrets = {one["name"]: one for one in body["properties"]["configuration"]["secrets"]}
    assert secrets["api-key"]["keyVaultUrl"] == f"{VAULT}/secrets/vllm-devops-gemma-api-key"
    assert secrets["hf-token"]["keyVaultUrl"] == f"{VAULT}/secrets/hf-token"
    assert {one["identity"] for one in secrets.values()} == {opened.ground.identity_id}
    assert not any("value" in one for one in secrets.values())
    container, _ = body["properties"]["template"]["containers"]
    refs = {env["name"]: env["secretRef"] for env in container["env"] if "secretRef" in env}
    assert refs == {"VLLM_API_KEY": "api-key", "HF_TOKEN": "hf-token"}
    assert list(body["identity"]["userAssignedIdentities"]) == [opened.ground.identity_id]


def test_what_runs_in_the_container_cannot_act_as_its_identity() -> None:
    """A model's own code could read every deployment's key with it."""
    (setting,) = _configuration()["identitySettings"]
    assert setting == {"identity": site().ground.identity_id, "lifecycle": "None"}


def test_a_ttl_is_a_tag() -> None:
    """When it ends is known by who applies alone, and a plan stays the same every time."""
    ends = {"vllm-devops-expires": "1700000000"}
    body = as_sent(app_of(site(), drawn(), addresses=CALLERS, ends=ends))
    assert body["tags"]["vllm-devops-expires"] == "1700000000"
    assert "vllm-devops-expires" not in sent()["tags"]


def test_an_azure_registry_is_pulled_from_with_the_identity() -> None:
    """A6: the app's own identity exists only after its first pull would have failed."""
    (registry,) = _configuration(image="mine.azurecr.io/vllm:1")["registries"]
    assert registry == {"server": "mine.azurecr.io", "identity": site().ground.identity_id}
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
        app_of(site(), drawn(), kept_at=VAULT)
    assert "AZURE_ALLOWED_ADDRESSES" in refused.value.fix
    assert ingress_of(drawn(access="public"), ()).ip_security_restrictions is None


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


_DIGEST = "sha256:" + "a" * 64


def _at(url: str) -> AzurePlane:
    return AzurePlane(arm=url, logs=url, vaults=url, storage=url, http=url, ca="", pid=1)


def _registry(status: int = 200) -> Starlette:
    async def manifest(request: Request) -> Response:
        known = request.path_params["tag"] != "gone"
        headers = {"docker-content-digest": _DIGEST}
        return Response(status_code=status if known else 404, headers=headers)

    return Starlette(
        routes=[Route("/v2/{name:path}/manifests/{tag}", manifest, methods=["HEAD", "GET"])]
    )


async def test_a_tag_becomes_a_digest_once_for_all() -> None:
    """The plan, its check and its deployment mean one image."""
    with serving(_registry()) as url:
        async with opened(_at(url), "s") as there:
            assert await pinned(there, "me/vllm:1") == f"me/vllm@{_DIGEST}"
    async with opened(_at(url), "s") as there:
        assert await pinned(there, "me/vllm:1") == f"me/vllm@{_DIGEST}"
        assert await pinned(there, PATCHED) == PATCHED


async def test_a_registry_that_cannot_be_asked_pins_nothing() -> None:
    """The tag is used, and whoever deploys is told."""
    async with opened(_at("http://127.0.0.1:9"), "s") as there:
        assert await pinned(there, "me/vllm:2") is None


async def test_an_image_that_is_not_there_is_refused() -> None:
    """A revision would fail after minutes with it."""
    with serving(_registry()) as url:
        async with opened(_at(url), "s") as there:
            with pytest.raises(CloudRefused, match="has no image me/vllm:gone") as refused:
                await pinned(there, "ghcr.io/me/vllm:gone")
            assert "AcrPull" in refused.value.fix


async def test_an_azure_registry_shows_nothing_to_visitors() -> None:
    """The identity pulls it, so that no answer here is a refusal there."""
    with serving(_registry(401)) as url:
        async with opened(_at(url), "s") as there:
            assert await pinned(there, "mine.azurecr.io/vllm:1") is None
            with pytest.raises(CloudRefused):
                await pinned(there, "ghcr.io/me/vllm:3")


def test_an_engine_is_known_by_its_image() -> None:
    """By the tag, or as ours where the digest hides it."""
    app = typed()
    assert version(site(A100), app) == "0.32.0"
    assert label(site(A100), f"vllm/vllm-openai@{_DIGEST}") == "vLLM 0.32.0"
    assert label(site(A100), PATCHED) == "vLLM (version not known)"
    assert label(site(A100, rehearsal=True), None).startswith("simulated vLLM")


_TEXT = strategies.text(alphabet=string.printable + "äß漢🙂", max_size=300)


def _tagged(tags: dict[str, str] | None) -> ContainerApp:
    return ContainerApp(location="x", tags=tags)


@given(strategies.lists(_TEXT, max_size=6))
def test_every_spec_comes_back_as_it_was(words: list[str]) -> None:
    """Whatever engine_args hold: blanks at the end of a part, letters beyond ASCII."""
    wanted = spec(engine_args=tuple(words))
    kept = tags_of("aca-a100", wanted)
    assert spec_in(kept) == wanted
    assert all(len(value) <= 256 for value in kept.values())
    assert all(value.isascii() and " " not in value for value in kept.values())
    assert fingerprint_in(_tagged(kept)) == wanted.fingerprint
    assert target_in(_tagged(kept)) == "aca-a100"
    assert is_ours(_tagged(kept))


def test_what_a_longer_spec_left_behind_does_no_harm() -> None:
    """A merge of tags keeps the old ones: the first part says how many count."""
    long = tags_of("aca-a100", spec(engine_args=("x" * 600,)))
    short = tags_of("aca-a100", spec())
    assert len(long) > len(short)
    assert spec_in({**long, **short}) == spec()


def test_a_spec_that_tags_cannot_hold_is_refused() -> None:
    """Azure has fifty tags for each resource, and some are needed for more."""
    assert len(tags_of("aca-a100", spec(engine_args=("x" * 9000,)))) < 50
    with pytest.raises(InvalidArgument, match="more than an app's tags hold"):
        tags_of("aca-a100", spec(engine_args=("x" * 11_000,)))


@pytest.mark.parametrize(
    "held",
    [
        None,
        {},
        {"vllm-devops-json-0": "{}"},
        {"vllm-devops-json-0": "x:{}"},
        {"vllm-devops-json-0": '1:{"name":"gemma"}'},
        {"vllm-devops-json-0": '2:{"name":"gemma",'},
    ],
)
def test_tags_that_somebody_changed_tell_nothing(held: dict[str, str] | None) -> None:
    """A broken tag is no spec, and no crash."""
    assert spec_in(held) is None
    assert not is_ours(_tagged(held))


def test_the_case_of_a_tags_name_does_not_matter() -> None:
    """Azure takes both for the same tag."""
    kept = {name.upper(): value for name, value in tags_of("aca-t4", spec()).items()}
    assert spec_in(kept) == spec()
    assert expires_in(_tagged({"VLLM-devops-EXPIRES": "1700000000"})) == datetime.fromtimestamp(
        1_700_000_000, UTC
    )
    assert expires_in(_tagged({"vllm-devops-expires": "soon"})) is None


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def allow(address: str) -> dict[str, str]:
    return {"name": "caller", "ipAddressRange": address, "action": "Allow"}


async def test_outside_a_rehearsal_it_is_always_https(tmp_path: Path) -> None:
    """A redirect would turn a POST into a GET."""
    async with planting(tmp_path) as there:
        there.app(ingress={"fqdn": "gemma.red.swedencentral.azurecontainerapps.io"})
        real = there.site.settings.model_copy(update={"rehearsal": False})
        object.__setattr__(there.site, "settings", real)
        found = await there.backend.access("gemma")
    assert found.base_url == "https://gemma.red.swedencentral.azurecontainerapps.io"


@pytest.mark.parametrize(
    ("ingress", "words"),
    [
        ({"ipSecurityRestrictions": [allow("203.0.113.7/32"), allow("10.0.0.0/8")]},
         "lets in 203.0.113.7/32, 10.0.0.0/8 and nobody else"),
        ({}, "open to the internet"),
        ({}, "paid replica"),
        ({}, "protects /v1 alone"),
        ({"external": False}, "only inside its environment's network"),
    ],
)  # fmt: skip
async def test_who_is_let_in_is_said(there: Planted, ingress: dict[str, Any], words: str) -> None:
    """And what the key does not protect, where an older version put no proxy before the engine."""
    there.app(ingress=ingress)
    assert words in (await there.backend.access("gemma")).protection


async def test_an_engine_without_a_key_is_not_said_to_have_one(there: Planted) -> None:
    """Somebody may have changed the app by hand."""
    body = there.app()
    body["properties"]["template"]["containers"][0]["env"] = []
    found = await there.backend.access("gemma")
    assert found.api_key is None
    assert found.header_commands == {}
    assert "has no key" in found.protection


async def test_before_it_has_an_address_it_is_not_ready(there: Planted) -> None:
    """Azure names it while it makes it."""
    there.app(ingress={"fqdn": None})
    with pytest.raises(NotReady) as caught:
        await there.backend.access("gemma")
    assert caught.value.next_steps[0].tool == "status_vllm"


async def test_a_key_that_is_gone_says_what_brings_it_back(there: Planted) -> None:
    """Somebody deleted it."""
    there.app()
    there.arm.refuse("GET .*vault.example/secrets/.*", 404, "SecretNotFound")
    with pytest.raises(NotFound, match="vllm-devops-gemma-api-key is missing"):
        await there.backend.access("gemma")


async def test_whoever_asks_is_let_in_where_nobody_is_named(
    azure: AzurePlane, bare_subscription: str
) -> None:
    async with opened(azure, bare_subscription) as site:
        assert await access.callers(site) == ("127.0.0.1/32",)


async def test_those_that_are_named_are_let_in_once_each() -> None:
    site = offline(azure_allowed_addresses="203.0.113.7, 198.51.100.0/24,203.0.113.7")
    assert await access.callers(site) == ("203.0.113.7/32", "198.51.100.0/24")


@pytest.mark.parametrize(
    "said", ["home", "203.0.113.7/24", "203.0.113.0/33", "1.2.3", "2001:db8::1"]
)
async def test_what_is_no_range_is_refused_before_anything_is_made(said: str) -> None:
    site = offline(azure_allowed_addresses=said)
    with pytest.raises(InvalidArgument) as caught:
        await access.callers(site)
    assert said in caught.value.summary
    assert "203.0.113.0/24" in caught.value.fix


async def test_outside_a_rehearsal_the_address_is_asked_of_a_public_echo(
    azure: AzurePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight.ECHO == "https://api.ipify.org"
    monkeypatch.setattr(access, "ECHO", f"{azure.http}/rehearsal/address")
    assert await access.callers(offline()) == ("127.0.0.1/32",)
