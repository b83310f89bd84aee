"""The same deployment as az commands, YAML and a docker line."""

import shlex
from typing import Any, Final

import pytest
import yaml

from core.processes import run
from tests.backends.aca.planned import (
    A100,
    DENSE_31B,
    FOLDER,
    PATCHED,
    T4,
    planned,
    resources,
    script,
    sent,
    site,
    small,
)

_WISHES: Final[dict[str, dict[str, Any]]] = {
    "hub": small(engine_args=("--chat-template", "it's {% x %}\nand more")),
    "folder": small(weights=FOLDER, access="public"),
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
async def test_the_last_command_makes_the_app_that_is_sent(target: str, wish: str) -> None:
    """Whoever pastes it gets what the tools would have made, quoted as it must be."""
    step = planned(_opened(target), **_WISHES[wish]).steps[-1]
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
def test_the_commands_make_what_the_bodies_say(target: str) -> None:
    """Names, region, profile, share: each as it is typed for the API."""
    there = resources(_opened(target), **_WISHES["folder"])
    create, add = there["environment"].command.splitlines()
    body = there["environment"].body
    profile = body["properties"]["workloadProfiles"][1]
    assert _flag(shlex.split(add), "--workload-profile-name") == profile["name"]
    assert _flag(shlex.split(add), "--workload-profile-type") == profile["workloadProfileType"]
    assert _flag(shlex.split(create), "--location") == body["location"]
    link = there["link weights-ro"]
    azure_file, words = link.body["properties"]["azureFile"], shlex.split(link.command)
    assert _flag(words, "--access-mode") == azure_file["accessMode"] == "ReadOnly"
    assert _flag(words, "--azure-file-share-name") == azure_file["shareName"]
    assert _flag(words, "--storage-name") == link.body["id"].rsplit("/", 1)[-1] == "weights-ro"
    account = there["account"]
    words = shlex.split(account.command)
    assert _flag(words, "--sku") == account.body["sku"]["name"]
    assert _flag(words, "--kind") == account.body["kind"]
    assert _flag(words, "--min-tls-version") == account.body["properties"]["minimumTlsVersion"]
    share = there["share"]
    words, size = shlex.split(share.command), share.body["properties"]
    assert _flag(words, "--quota") == str(size["shareQuota"])
    assert _flag(words, "--provisioned-bandwidth-mibps") == str(size["provisionedBandwidthMibps"])


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


def test_a_workspace_of_ones_own_is_named_by_its_guid() -> None:
    """Its key comes from a variable of whoever pastes it."""
    text = script(_opened(azure_log_analytics_workspace_id="g-1"), **_WISHES["hub"])
    (line,) = [one for one in text.splitlines() if "env create" in one]
    assert " || printenv WORKSPACE_KEY | az containerapp env create " in line
    assert line.endswith("--logs-workspace-id g-1")
    assert "log-analytics workspace create" not in text
