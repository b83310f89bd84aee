"""The same deployment as az commands, YAML and a docker line."""

import shlex
from typing import Any, Final

import pytest
import yaml

from backends.aca import plan
from backends.aca.app import Blueprint
from core.processes import run
from tests.backends.aca.planned import (
    A100,
    DENSE_31B,
    FOLDER,
    PATCHED,
    T4,
    drawn,
    planned,
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


def _opened(target: str = A100) -> Any:
    return site(target, azure_subscription_id="mine", hf_token="hf_x")


def _made(target: str, wish: str) -> Blueprint:
    return drawn(_opened(target), **_WISHES[wish])


def _words(command: str) -> list[str]:
    return shlex.split(command.partition(" <<")[0])


def _flag(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@targets
@wishes
def test_the_yaml_is_the_typed_app(target: str, wish: str) -> None:
    """Two forms of one thing that differ are two things."""
    made = _made(target, wish)
    written = yaml.safe_load(plan.app_yaml(made))
    assert written.pop("name") == "gemma"
    assert written.pop("type") == "Microsoft.App/containerApps"
    assert written == plan.app_body(made)
    assert (
        written["properties"]["template"]
        == sent(_opened(target), **_WISHES[wish])["properties"]["template"]
    )


@targets
@wishes
def test_the_command_makes_the_same_app(target: str, wish: str) -> None:
    """Whoever pastes it gets what the tools would have made."""
    made = _made(target, wish)
    head, _, rest = plan.deploy_command(made).partition("\n")
    words = _words(head)
    assert words[:3] == ["az", "containerapp", "create"]
    assert _flag(words, "--name") == "gemma"
    assert _flag(words, "--resource-group") == made.ground.resource_group
    assert _flag(words, "--yaml") == "/dev/stdin"
    ending = shlex.split(head.rpartition("<<")[2])[0]
    body = rest.rpartition(ending)[0]
    assert yaml.safe_load(body) == yaml.safe_load(plan.app_yaml(made))


@pytest.mark.anyio
@targets
@wishes
async def test_a_shell_understands_every_line(target: str, wish: str) -> None:
    """Quoted as it must be, also what somebody put into engine_args."""
    commands = plan.commands(_made(target, wish))
    assert (await run(["/bin/bash", "-n", "-c", commands])).returncode == 0
    script = "az() { cat; }\n" + plan.deploy_command(_made(target, wish))
    shown = await run(["/bin/bash", "-c", script])
    assert yaml.safe_load(shown.stdout) == yaml.safe_load(plan.app_yaml(_made(target, wish)))


@wishes
def test_no_text_holds_a_key(wish: str) -> None:
    """What is pasted ends up in a shell's history; keys go through pipes."""
    made = _made(A100, wish)
    for written in (plan.commands(made), plan.app_yaml(made), plan.docker_command(made)):
        assert "hf_x" not in written
        assert "VLLM_API_KEY=" not in written
    for line in plan.commands(made).splitlines():
        for flag in ("--logs-workspace-key", "--azure-file-account-key"):
            if flag in line:
                words = shlex.split(line)
                assert _flag(words, flag) == "@-"
                assert "|" in words


def test_the_key_goes_from_a_pipe_into_the_vault() -> None:
    """It is in no file, argument or variable."""
    made = _made(A100, "hub")
    key = plan.key_commands(made)
    kept, _, made_anew = key.partition(" || ")
    assert kept.startswith("az keyvault secret show ")
    assert made_anew.startswith("openssl rand -hex 32 | tr -d '\\n' | az keyvault secret set ")
    words = shlex.split(made_anew)
    assert _flag(words, "--name") == "vllm-devops-gemma-api-key"
    assert _flag(words, "--vault-name") == made.ground.vault
    assert _flag(words, "--file") == "/dev/stdin"
    assert "--value" not in words


@pytest.mark.parametrize(("wish", "reads"), [("hub", True), ("folder", False)])
def test_a_token_that_the_app_reads_is_kept_before_it(wish: str, *, reads: bool) -> None:
    """A reference to a secret that is not there would keep every replica from starting."""
    before, _, _ = plan.commands(_made(A100, wish)).partition("az containerapp create")
    assert ('printf %s "$HF_TOKEN" | az keyvault secret set' in before) is reads
    steps = [step for step in planned(_opened(), **_WISHES[wish]).steps if "HF_TOKEN" in step.what]
    assert [step.request["id"].rsplit("/", 1)[-1] for step in steps] == ["hf-token"] * reads


def test_the_key_has_the_tags_that_the_tools_give() -> None:
    """By them a deployment's secret is known to be its own."""
    (step,) = [one for one in planned(_opened()).steps if "random key" in one.what]
    words = shlex.split(step.command)
    assert words[words.index("--tags") + 1 :] == [
        f"{name}={value}" for name, value in step.request["tags"].items()
    ]


@targets
@wishes
def test_a_plans_commands_are_the_text(target: str, wish: str) -> None:
    """What a plan shows for each step is what the whole text is made of."""
    commands = [step.command for step in planned(_opened(target), **_WISHES[wish]).steps]
    assert "\n".join(commands) == plan.commands(_made(target, wish))


@targets
def test_the_commands_make_what_the_bodies_say(target: str) -> None:
    """Names, region, profile, share: each as it is typed for the API."""
    plan = planned(_opened(target), **_WISHES["folder"])
    by_start = {step.what.split(",")[0]: step for step in plan.steps}
    (environment,) = [one for name, one in by_start.items() if "environment vllm" in name]
    create, add = environment.command.splitlines()
    profile = environment.request["properties"]["workloadProfiles"][1]
    assert _flag(shlex.split(add), "--workload-profile-name") == profile["name"]
    assert _flag(shlex.split(add), "--workload-profile-type") == profile["workloadProfileType"]
    assert _flag(shlex.split(create), "--location") == environment.request["location"]
    (link,) = [one for name, one in by_start.items() if name.startswith("Link")]
    azure_file, words = link.request["properties"]["azureFile"], shlex.split(link.command)
    assert _flag(words, "--access-mode") == azure_file["accessMode"] == "ReadOnly"
    assert _flag(words, "--azure-file-share-name") == azure_file["shareName"]
    assert _flag(words, "--storage-name") == link.request["id"].rsplit("/", 1)[-1] == "weights-ro"
    (account,) = [one for name, one in by_start.items() if "storage account" in name]
    words = shlex.split(account.command)
    assert _flag(words, "--sku") == account.request["sku"]["name"]
    assert _flag(words, "--kind") == account.request["kind"]
    assert _flag(words, "--min-tls-version") == account.request["properties"]["minimumTlsVersion"]
    (share,) = [one for name, one in by_start.items() if name.startswith("Make the share")]
    words, size = shlex.split(share.command), share.request["properties"]
    assert _flag(words, "--quota") == str(size["shareQuota"])
    assert _flag(words, "--provisioned-bandwidth-mibps") == str(size["provisionedBandwidthMibps"])


@targets
def test_what_is_there_is_not_made_anew(target: str) -> None:
    """`az … create` puts a whole new body: another target's profile or a share's size would go."""
    for line in (
        plan.commands(_made(target, "folder")).partition("az containerapp create")[0].splitlines()
    ):
        if " create " in line and "role assignment" not in line:
            seen, _, _ = line.partition(" || ")
            assert shlex.split(seen)[-3:] == ["--output", "none", "2>/dev/null"]
            assert " show " in seen


@targets
def test_every_command_names_the_subscription(target: str) -> None:
    """Whoever pastes them may have chosen another one, which would get half of it."""
    words = shlex.split(
        plan.commands(_made(target, "folder")).replace("$(", " ").partition("<<")[0]
    )
    starts = [at for at, word in enumerate(words) if word == "az"]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        command = words[start:end]
        if command[1] != "ad":
            assert _flag(command, "--subscription") == "mine"


def test_a_workspace_of_ones_own_is_named_by_its_guid() -> None:
    """Its key comes from a variable of whoever pastes it."""
    made = _made(A100, "hub")
    (line,) = [one for one in plan.commands(made, guid="g-1").splitlines() if "env create" in one]
    assert " || printenv WORKSPACE_KEY | az containerapp env create " in line
    assert line.endswith("--logs-workspace-id g-1")
    assert "log-analytics workspace create" not in plan.commands(made, guid="g-1")


def test_docker_runs_the_same_container() -> None:
    """On a GPU of one's own, with the key taken from the shell."""
    made = _made(A100, "folder")
    words = shlex.split(plan.docker_command(made))
    there = ["0.0.0.0" if word == "127.0.0.1" else word for word in made.container.args]  # noqa: S104
    assert words[-len(made.container.args) :] == there
    assert "VLLM_API_KEY" in words
    assert "--entrypoint=vllm" in words
    assert "/mnt/weights:/weights:ro" in words
    assert "/mnt/weights:/weights" in shlex.split(plan.docker_command(_made(A100, "large")))
    assert "-v" not in shlex.split(plan.docker_command(_made(A100, "hub")))


def test_the_address_of_the_vault_is_that_of_the_real_cloud() -> None:
    """A plan asks nobody where it is."""
    made = _made(A100, "hub")
    url = plan.vault_url(made.ground)
    assert url == f"https://{made.ground.vault}.vault.azure.net"
    secret = as_sent_secret(made)
    assert secret.startswith(url)


def as_sent_secret(made: Blueprint) -> str:
    body: Any = plan.app_body(made)
    return str(body["properties"]["configuration"]["secrets"][0]["keyVaultUrl"])
