"""What a startup script has decided is read as bash would, or not at all."""

import shlex

import pytest

from simulators.google import vm_script
from simulators.google.vm_script import BadScript, DockerRefused, Serial, read
from tests.simulators.google.vms import command, docker, script


def test_each_decision_is_read() -> None:
    """Words, numbers and lists."""
    decided = read(script(TOKEN_SECRET="hf-token", PORT="8123", TLS="no"))
    assert (decided.deployment, decided.port, decided.tls) == ("one", 8123, False)
    assert (decided.key_secret, decided.token_secret) == ("key", "hf-token")
    assert decided.docker == docker()
    assert decided.command == command()


@pytest.mark.parametrize(
    "word",
    ["it's", 'a "b"', "$HOME", "`id`", "a\\b", "a\nb", "", "(x)", "# --- to do", '{"image": 4}'],
)
def test_a_quoted_word_is_taken_as_it_is(word: str) -> None:
    """Whatever is in it; in either way of quoting it."""
    always = "'" + word.replace("'", "'\"'\"'") + "'"
    for quoted in (always, shlex.quote(word)):
        text = script(COMMAND=None).replace(
            "# --- to do", f"readonly COMMAND=({quoted})\n# --- to do"
        )
        assert read(text).command == (word,)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("readonly IMAGE=$OTHER", "Bash would change"),
        ('readonly IMAGE="a b"', "Bash would change"),
        ("readonly IMAGE=`id`", "Bash would change"),
        ("IMAGE=a", "Not a decision"),
        ("export IMAGE=a", "Not a decision"),
        ("echo hello", "Not a decision"),
        ("readonly IMAGE='a", "A quote is not closed"),
        ("readonly IMAGE=(a b)", "IMAGE is one word"),
        ("readonly IMAGE=a b", "IMAGE is one word"),
        ("readonly DOCKER=a", "DOCKER is a list"),
        ("readonly PORT=http", "PORT a number"),
        ("readonly TLS=true", "TLS is yes or no"),
    ],
)
def test_anything_else_is_refused(line: str, words: str) -> None:
    """Rather than taken for what it is not."""
    name = line.partition("=")[0].rpartition(" ")[2]
    text = script(**({name: None} if name.isupper() else {}))
    with pytest.raises(BadScript, match=words):
        read(text.replace("# --- to do", f"{line}\n# --- to do"))


@pytest.mark.parametrize("name", ["PROJECT", "KEY_SECRET", "COMMAND", "TLS"])
def test_what_is_missing_is_unbound(name: str) -> None:
    """As bash says it under `set -u`."""
    with pytest.raises(BadScript, match=f"{name}: unbound variable"):
        read(script(**{name: None}))


def test_docker_reads_what_it_is_told() -> None:
    """In either form of a flag."""
    words = ["--network", "host", "-e", "A=b=c", "--env", "KEY", "-v", "/a:/b/:ro", "-d"]
    run = vm_script.docker_read(
        [*words, "--log-driver=gcplogs", "--log-opt=labels=x", "--label", "x=y"]
    )
    assert run.host_network
    assert not run.privileged
    assert run.environment == {"A": "b=c", "KEY": None}
    assert run.outside("/b/c/d") == "/a/c/d"
    assert run.outside("/bc") is None
    assert run.labels == {"x": "y"}
    assert run.driver_options == {"labels": "x"}


@pytest.mark.parametrize(
    "words", [["--gpus-all"], ["--shm", "1g"], ["image"], ["-v", "nowhere"], ["--name"]]
)
def test_docker_refuses_what_it_does_not_know(words: list[str]) -> None:
    """Flags that are none, not even shortened ones, and what should stand behind the image."""
    with pytest.raises(DockerRefused):
        vm_script.docker_read(words)


def test_a_serial_port_keeps_one_megabyte() -> None:
    """The oldest lines go, and it is known how much went."""
    serial = Serial()
    for number in range(30_000):
        serial.write(f"{number:06d} {'ä' * 20}")
    size = len(serial.text.encode())
    assert (1 << 20) - 100 < size <= 1 << 20
    assert serial.dropped + size == 30_000 * 48
    assert serial.text.startswith(f"{serial.dropped // 48:06d} ")
