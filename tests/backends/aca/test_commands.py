"""Every command that is printed: what the bodies say, taken by az, and without a key."""

import json
import re
import shlex
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from azure.mgmt.keyvault.models import Sku, Vault, VaultProperties

from backends.aca import ground, plan, secrets, storage
from backends.aca.app import app_of, blueprint
from backends.aca.site import Site, as_sent
from core.errors import CloudRefused, NotFound
from core.processes import run
from planner.model import read_model
from tests.backends.aca.planned import (
    A100,
    CALLERS,
    DENSE_31B,
    E4B,
    FOLDER,
    PATCHED,
    T4,
    VAULT,
    planned,
    resources,
    script,
    sent,
    site,
    small,
    spec,
)
from tests.backends.aca.planted import Planted, planting

pytestmark = pytest.mark.anyio
_WISHES: Final[dict[str, dict[str, Any]]] = {
    "hub": small(engine_args=("--chat-template", "it's {% x %}\nand more")),
    "folder": small(weights=FOLDER, access="public"),
    "internal": small(access="internal"),
    "leased": small(ttl_minutes=90),
    "large": {"model": DENSE_31B, "image": PATCHED, "min_replicas": 1, "max_replicas": 3},
}
wishes = pytest.mark.parametrize("wish", _WISHES)
targets = pytest.mark.parametrize("target", [A100, T4])


def _opened(target: str = A100, **said: Any) -> Any:
    return site(target, azure_subscription_id="mine", hf_token="hf_x", **said)


def _script(target: str, wish: str) -> str:
    return script(_opened(target), **_WISHES[wish])


def _flag(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.mark.anyio
@targets
@wishes
async def test_a_command_makes_the_app_that_is_sent(target: str, wish: str) -> None:
    """Whoever pastes it gets what the tools would have made, quoted as it must be."""
    steps = planned(_opened(target), **_WISHES[wish]).steps
    step = next(one for one in steps if one.command.startswith("az containerapp create "))
    words = shlex.split(step.command.partition(" <<")[0])
    assert words[:3] == ["az", "containerapp", "create"]
    assert _flag(words, "--name") == "gemma"
    assert _flag(words, "--resource-group") == "vllm-devops"
    shown = await run(["/bin/bash", "-c", f"az() {{ cat; }}\n{step.command}"])
    written = yaml.safe_load(shown.stdout)
    assert written.pop("name") == "gemma"
    assert written.pop("type") == "Microsoft.App/containerApps"
    assert written == {name: said for name, said in step.request.items() if name != "id"}
    template = sent(_opened(target), **_WISHES[wish])["properties"]["template"]
    assert written["properties"]["template"] == template
    assert (await run(["/bin/bash", "-n", "-c", _script(target, wish)])).returncode == 0


def test_a_share_is_made_as_large_and_as_fast_by_hand_as_by_a_call() -> None:
    """A share that is asked for without its throughput gets the least, and boots take longer."""
    share = resources(_opened(), **_WISHES["large"])["share"]
    words, body = shlex.split(share.command.partition(" || ")[2]), share.body["properties"]
    assert _flag(words, "--quota") == str(body["shareQuota"])
    assert _flag(words, "--provisioned-bandwidth-mibps") == str(body["provisionedBandwidthMibps"])
    assert _flag(words, "--enabled-protocols") == body["enabledProtocols"]


def test_what_ends_it_is_put_as_it_is_sent_with_a_time_that_counts_from_the_plan() -> None:
    """A person who pastes it within the hour gets a job that starts, and the role of that job."""
    steps = planned(_opened(), **_WISHES["leased"]).steps
    put = [one for one in steps if one.command.startswith("az rest ")]
    assert [shlex.split(one.command)[-2:] for one in put] == [
        ["--body", json.dumps({name: said for name, said in one.request.items() if name != "id"})]
        for one in put
    ]
    tags = put[-1].request["tags"]
    assert 88 * 60 < int(tags["vllm-devops-expires"]) - time.time() <= 90 * 60
    job = "az containerapp job show --name lease-gemma"
    assert f'--assignee-object-id "$({job}' in steps[-1].command


@wishes
def test_no_text_holds_a_key(wish: str) -> None:
    """What is pasted ends up in a shell's history; keys go through pipes."""
    text = _script(A100, wish)
    assert "hf_x" not in text
    assert "VLLM_API_KEY=" not in text
    for line in text.splitlines():
        for flag in ("--logs-workspace-key", "--azure-file-account-key"):
            if flag in line:
                words = shlex.split(line)
                assert _flag(words, flag) == "@-"
                assert "|" in words


def test_the_key_goes_from_a_pipe_into_the_vault_unless_one_is_kept() -> None:
    """It is in no file, argument or variable; by its tags it is known to be this deployment's."""
    key = resources(_opened(), **_WISHES["hub"])["vllm-devops-gemma-api-key"]
    kept, _, made_anew = key.command.partition(" || ")
    assert kept.startswith("az keyvault secret show ")
    assert made_anew.startswith("openssl rand -hex 32 | tr -d '\\n' | az keyvault secret set ")
    words = shlex.split(made_anew)
    assert _flag(words, "--name") == "vllm-devops-gemma-api-key"
    assert _flag(words, "--file") == "/dev/stdin"
    assert "--value" not in words
    tags = [f"{name}={value}" for name, value in key.body["tags"].items()]
    assert words[words.index("--tags") + 1 :] == tags


@pytest.mark.parametrize(("wish", "reads"), [("hub", True), ("folder", False)])
def test_a_token_that_the_app_reads_is_kept_before_it(wish: str, *, reads: bool) -> None:
    """A reference to a secret that is not there would keep every replica from starting."""
    before, _, _ = _script(A100, wish).partition("az containerapp create")
    assert ('printf %s "$HF_TOKEN" | az keyvault secret set' in before) is reads
    steps = [step for step in planned(_opened(), **_WISHES[wish]).steps if "HF_TOKEN" in step.what]
    assert [step.request["id"].rsplit("/", 1)[-1] for step in steps] == ["hf-token"] * reads


@targets
def test_what_is_there_is_not_made_anew(target: str) -> None:
    """`az … create` puts a whole new body: another target's profile or a share's size would go."""
    for line in _script(target, "folder").partition("az containerapp create")[0].splitlines():
        if " create " in line and "role assignment" not in line:
            seen, _, _ = line.partition(" || ")
            assert shlex.split(seen)[-3:] == ["--output", "none", "2>/dev/null"]
            assert " show " in seen


@targets
def test_every_command_names_the_subscription(target: str) -> None:
    """Whoever pastes them may have chosen another one, which would get half of it."""
    words = shlex.split(_script(target, "folder").replace("$(", " ").partition("<<")[0])
    starts = [at for at, word in enumerate(words) if word == "az"]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        command = words[start:end]
        if command[1] != "ad":
            assert _flag(command, "--subscription") == "mine"


_TABLE: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("az_commands.toml").read_text(encoding="utf-8")
)
_EVERYWHERE: Final = set(str(_TABLE.pop("everywhere")).split())


def wrong(words: list[str]) -> str:
    """Say what the CLI would say of one command, without its `az`; nothing if it is content."""
    name = next((one for one in _prefixes(words) if one in _TABLE), None)
    if name is None:
        return f"'{' '.join(words[:3])}' is misspelled or not recognized"
    given = {word for word in words if word.startswith("--")}
    unknown = given - _EVERYWHERE - set(_TABLE[name]["allowed"].split())
    missing = [one for one in _TABLE[name]["required"].split() if not given & {*one.split("|")}]
    return f"{name}: unknown {sorted(unknown)}, missing {missing}" if unknown or missing else ""


def _prefixes(words: list[str]) -> Iterator[str]:
    for end in range(min(len(words), 5), 0, -1):
        yield " ".join(words[:end])


def _commands(script: str) -> Iterator[list[str]]:
    """Take a shell's lines apart; what stands between words for YAML is none of them."""
    plain = re.sub(r" <<'(\w+)'\n.*?\n\1$", "", script, flags=re.DOTALL | re.MULTILINE)
    plain = plain.replace('"$(', " ; az_in ").replace(')"', " ")
    for line in plain.splitlines():
        words: list[str] = []
        for word in (*shlex.split(line.replace("; az_in ", "| ")), "|"):
            if word not in {"|", "||"}:
                words.append(word)
                continue
            if words[:1] == ["az"]:
                yield words[1:]
            words = []


def by_policies(opened: Site) -> str:
    """Give the command that is printed for a vault that goes by access policies."""
    properties = VaultProperties(tenant_id="t", sku=Sku(family="A", name="standard"))
    with pytest.raises(CloudRefused) as caught:
        secrets.refuse_policies(opened, Vault(properties=properties))
    return caught.value.fix.split("`")[1]


def _printed(target: str) -> Iterator[str]:
    mine = {"azure_subscription_id": "mine", "hf_token": "hf_x"}
    for more in ({}, {"azure_log_analytics_workspace_id": "g-1"}):
        opened = site(target, **mine, **more)
        yield from (script(opened, **wish) for wish in _WISHES.values())
    yield from (command for _, command in storage.upload_commands(opened, "a b", "./a", None).steps)
    yield by_policies(opened)
    yield storage.has_room(opened, None, 2**40).fix.split("`")[1]
    yield from (one.command for one in secrets.base(opened))
    yield secrets.read_command(opened, "k")
    yield secrets.hub_token(opened).how_to_remove
    yield ground.lease_command(opened, "me")


@targets
def test_az_takes_every_command_that_is_printed(target: str) -> None:
    """Known commands, known options, and none that must be given is missing."""
    commands = [words for script in _printed(target) for words in _commands(script)]
    assert len({" ".join(words[:3]) for words in commands}) > 20
    assert [problem for words in commands if (problem := wrong(words))] == []


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def _plant(there: Planted, *, token: bool = False, **said: Any) -> None:
    """Let an app run as it was planned, with the image that it was pinned to."""
    wanted = spec(**said)
    made = blueprint(there.site, wanted, read_model(wanted.model), hf_token=token)
    pinned = made.container.model_copy(update={"image": PATCHED})
    made = made.model_copy(update={"container": pinned})
    sent = as_sent(app_of(there.site, made, kept_at=VAULT, addresses=CALLERS))
    properties = sent["properties"]
    configuration, template = properties["configuration"], properties["template"]
    there.app(tags=sent["tags"], configuration=configuration, template=template)


async def test_it_is_written_as_it_runs(there: Planted) -> None:
    """With its image, its callers and the token it reads, not as it would be made today."""
    _plant(there, token=True, model=E4B, max_num_seqs=8)
    config = await plan.config(there.site, "gemma")
    written = yaml.safe_load(config.yaml)["properties"]
    container, _ = written["template"]["containers"]
    assert container["image"] == PATCHED
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= {env["name"] for env in container["env"]}
    (restriction,) = written["configuration"]["ingress"]["ipSecurityRestrictions"]
    assert restriction["ipAddressRange"] == CALLERS[0]
    (rule,) = written["template"]["scale"]["rules"]
    assert rule["http"]["metadata"]["concurrentRequests"] == "8"
    assert PATCHED in config.command
    assert PATCHED in config.docker_run
    assert any("--yaml app.yaml" in note for note in config.notes)
    assert any("ServicePrincipal, not User" in note for note in config.notes)
    words = shlex.split(config.docker_run)
    assert {"VLLM_API_KEY", "--entrypoint=vllm", "0.0.0.0"} <= {*words}  # noqa: S104
    assert "/mnt/weights:/weights" in words
    url = written["configuration"]["secrets"][0]["keyVaultUrl"]
    assert url.startswith(await there.site.clients.secrets_url())


async def test_a_token_that_is_not_read_is_not_written(there: Planted) -> None:
    """A reference to a secret that is not there would keep every replica from starting."""
    _plant(there)
    config = await plan.config(there.site, "gemma")
    assert "HF_TOKEN" not in config.yaml


async def test_what_nobody_can_read_any_more_is_said(there: Planted) -> None:
    """Somebody took the tags away; the app is still there to be read."""
    there.app(tags={"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-a100"})
    with pytest.raises(NotFound) as caught:
        await plan.config(there.site, "gemma")
    assert "az containerapp show" in caught.value.fix
