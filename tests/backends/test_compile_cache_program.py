"""The program that carries a cache, as a process, before an engine that compiles one file.

It reads and writes a folder, and a bucket on this machine.
"""

import hashlib
import io
import json
import os
import signal
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from backends import compile_cache_program as program
from backends.compile_cache import CompileCache, carried
from backends.container import Container
from core.address import free_port
from core.environment import inherited_environment
from tests.backends.stored import TOKEN, Ill, Stored, stored
from tests.soon import HANGS

pytestmark = pytest.mark.anyio
ONE: Final = "torch_compile_cache/one"
FACTS: Final = {"image": "i", "accelerator": "cpu"}
TAR: Final = "vllm-devops-cache/one/k.tar"
ASIDE: Final = "vllm-devops-cache/one/k.aside.tar"


class Boot(NamedTuple):
    lines: list[str]
    code: int

    @property
    def of_cache(self) -> list[str]:
        """What was done with the cache, without figures."""
        mine = (one.removeprefix("compile-cache: ") for one in self.lines if "e-cache: " in one)
        return [one.partition(" k")[0] for one in mine]


class World:
    """A store, and boots that share it; what a replica has is new each time."""

    def __init__(self, folder: Path, bucket: Stored | None) -> None:
        self.folder, self.bucket, self.root = folder, bucket, folder / "replica" / "root"
        self.store = str(folder / "share" / "vllm-devops-cache" / "one")
        self.root.parent.mkdir()
        self.port = free_port()

    @property
    def files(self) -> dict[str, bytes]:
        if self.bucket:
            return self.bucket.objects
        top = self.folder / "share"
        found = (one for one in top.rglob("*") if one.is_file())
        return {str(one.relative_to(top)): one.read_bytes() for one in found}

    def put(self, body: bytes) -> None:
        if self.bucket:
            self.bucket.put(TAR, body)
        else:
            place = self.folder / "share" / TAR
            place.parent.mkdir(parents=True)
            place.write_bytes(body)

    async def boot(
        self,
        until: str = "engine serves",
        *,
        by: signal.Signals = signal.SIGTERM,
        facts: dict[str, str] = FACTS,
        compiles: tuple[str, ...] = (ONE,),
        seen: Callable[[], None] = lambda: None,
        fetch_seconds: float = 20,
        **wish: Any,
    ) -> Boot:
        """Boot until a line says so, and end it by a signal."""
        store = "gs://bucket/vllm-devops-cache/one" if self.bucket else self.store
        cache = CompileCache(store=store, key="k", facts=facts, health="")
        engine = Path(__file__).with_name("compiling.py")
        wishes = json.dumps({"port": self.port, "compiles": compiles, **wish})
        made = carried(
            Container(
                image="i",
                command=(sys.executable, str(engine)),
                args=(wishes,),
                env={},
                port=self.port,
                health="/health",
            ),
            cache,
        )
        url = self.bucket.url if self.bucket else ""
        hastened = {
            "storage": url,
            "metadata": url,
            "poll_seconds": 0.02,
            "fetch_seconds": fetch_seconds,
        }
        env = {
            **inherited_environment(),
            **made.env,
            "COMPILE_CACHE": json.dumps(json.loads(made.env["COMPILE_CACHE"]) | hastened),
            "VLLM_CACHE_ROOT": str(self.root),
        }
        said = ""
        argv = [sys.executable, *made.command[1:], *made.args]
        async with await anyio.open_process(argv, env=env, stderr=-2) as process:
            assert process.stdout
            try:
                with anyio.fail_after(HANGS):
                    async for text in TextReceiveStream(process.stdout):
                        said += text
                        if until and until in said:
                            seen()
                            process.send_signal(by)
                            until = ""
            except TimeoutError:
                process.terminate()
            code = await process.wait()
        assert not until or until == "never", said
        assert TOKEN not in said
        return Boot(said.splitlines(), code)


@pytest.fixture(params=["folder", "bucket"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "folder":
        yield World(tmp_path, None)
    else:
        with stored() as bucket:
            yield World(tmp_path, bucket)


@pytest.fixture
def shared(tmp_path: Path) -> World:
    """A folder alone: what is wrong with a file is the same wherever it lies."""
    return World(tmp_path, None)


async def test_what_one_boot_compiled_the_next_one_finds(world: World) -> None:
    """It is saved again when there is more of it, twice: some are new at each boot."""
    first = await world.boot("saved k")
    assert first.of_cache == ["none for", "saved"]
    assert "engine has" in first.lines
    again = await world.boot("nothing new")
    assert again.of_cache == ["carried", "nothing new for"]
    assert f"engine has {ONE}" in again.lines
    more = await world.boot("saved k", compiles=("two",))
    assert more.of_cache == ["carried", "saved"]
    await world.boot("saved k", compiles=("three",))
    last = await world.boot("nothing new", compiles=("new each time",))
    assert f"engine has three {ONE} two" in last.lines
    assert set(world.files) == {TAR}


async def test_an_engine_that_ends_with_what_was_carried_starts_again_without(
    world: World,
) -> None:
    """In the same container; the old one lies aside, and what is compiled anew takes its place."""
    await world.boot("saved k")
    old = world.files[TAR]
    crashed = await world.boot("saved k", crash=3, compiles=("two",))
    assert crashed.of_cache == ["carried", "put aside", "saved"]
    assert any("ended with 3" in line for line in crashed.lines)
    assert [one for one in crashed.lines if one.startswith("engine has")] == [
        f"engine has {ONE}",
        "engine has",
    ]
    assert world.files[ASIDE] == old
    assert world.files[TAR] != old
    again = await world.boot("nothing new", compiles=("two",))
    assert "engine has two" in again.lines


async def test_an_engine_that_ends_without_it_is_not_started_again(shared: World) -> None:
    """Its code is the program's."""
    boot = await shared.boot("never", broken=9)
    assert boot.code == 9
    assert boot.of_cache == ["none for"]
    await shared.boot("saved k")
    twice = await shared.boot("never", broken=9)
    assert twice.code == 9
    assert twice.lines.count("engine has") == 1


async def test_a_stop_before_the_first_answer_keeps_it(shared: World) -> None:
    """A platform that scales down looks the same as one that gives a boot up."""
    await shared.boot("saved k")
    stopped = await shared.boot(loads=True)
    assert stopped.of_cache == ["carried", "stopped before the first answer, with"]
    assert set(shared.files) == {TAR}


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_signals_reach_the_engine_and_its_code_comes_back(
    shared: World, by: signal.Signals
) -> None:
    """As a shell says it where it was killed."""
    killed = await shared.boot(by=by)
    assert killed.code == 128 + by
    assert (await shared.boot(exit=7)).code == 7


def packed(
    *members: tuple[str, bytes], facts: dict[str, str] | None = None, link: str = ""
) -> bytes:
    """Write a tar as the program does, with a checksum that is right."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        for name, text in members:
            one = tarfile.TarInfo(name)
            one.size = len(text)
            if link:
                one.type, one.linkname, one.size = tarfile.SYMTYPE, link, 0
            tar.addfile(one, io.BytesIO(text))
    cache = {"key": "k", "health": "", "facts": {**FACTS, **(facts or {})}, "store": "/nowhere"}
    made = program.Supervisor(cache, Path("/nowhere"), [])
    made.facts |= facts or {}
    return made.head(hashlib.sha256(body.getvalue()).hexdigest()) + body.getvalue()


def changed(body: bytes) -> bytes:
    at = body.index(b"x" * 500)
    return body[:at] + b"y" + body[at + 1 :]


GOOD: Final = packed((ONE, b"x" * 1000))
REFUSED: Final[dict[str, tuple[bytes, str]]] = {
    "another version of vLLM": (packed((ONE, b"x"), facts={"vllm": "0.31.0"}), "not used"),
    "another torch": (packed((ONE, b"x"), facts={"torch": "2.0"}), "not used"),
    "another processor": (packed((ONE, b"x"), facts={"cpu": "another"}), "not used"),
    "another image": (packed((ONE, b"x"), facts={"image": "j"}), "not used"),
    "no tar": (b"no tar at all" * 1000, "put aside"),
    "nothing": (b"", "put aside"),
    "cut short": (GOOD[:-9000], "put aside"),
    "one byte changed": (changed(GOOD), "put aside"),
    "no manifest": (GOOD[2048:], "put aside"),
    "a path that leaves": (packed(("../evil", b"x")), "put aside"),
    "a link": (packed(("link", b""), link="/etc/passwd"), "put aside"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_does_not_fit_or_is_broken_is_not_used_and_replaced(
    shared: World, case: str
) -> None:
    """The engine finds nothing, serves, and what it compiles is saved; nothing lies elsewhere."""
    body, outcome = REFUSED[case]
    shared.put(body)
    boot = await shared.boot("saved k")
    assert boot.of_cache == [outcome, "saved"], boot.lines
    assert "engine has" in boot.lines
    assert (ASIDE in shared.files) is (outcome == "put aside")
    assert {one.name for one in shared.root.parent.iterdir()} == {"root"}


def test_the_program_takes_what_this_test_packs(tmp_path: Path) -> None:
    """Else every row above would be refused for another reason."""
    cache = {"key": "k", "health": "", "facts": FACTS, "store": str(tmp_path)}
    one = program.Supervisor(cache, tmp_path / "root", [])
    assert one.unpack(io.BytesIO(GOOD)) == {ONE}


def healthy(world: World) -> Callable[[], None]:
    def look() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{world.port}/health") as answer:
            assert answer.status == 200

    return look


@pytest.mark.parametrize(
    ("ill", "told"),
    [
        ("forbidden", "none for"),  # so is what is not there, to an account that may not list
        ("no login", "not fetched"),
        ("no head", "not fetched"),
    ],
)
async def test_a_bucket_that_does_not_give_is_told_and_the_engine_serves(
    tmp_path: Path, ill: Ill, told: str
) -> None:
    """What lies there is not written over unseen."""
    with stored() as bucket:
        world = World(tmp_path, bucket)
        await world.boot("saved k")
        old = dict(bucket.objects)
        bucket.ill = ill
        boot = await world.boot("not saved", seen=healthy(world))
        assert boot.of_cache[0] == told
        assert "engine has" in boot.lines
        assert bucket.objects == old


async def test_an_answer_that_is_cut_off_is_not_the_stores_fault(tmp_path: Path) -> None:
    """It is not put aside."""
    with stored() as bucket:
        world = World(tmp_path, bucket)
        await world.boot("saved k")
        bucket.ill = "cut off"
        boot = await world.boot("saved k")
        assert boot.of_cache == ["not fetched", "saved"]
        assert set(bucket.objects) == {TAR}


async def test_a_share_that_cannot_be_written_is_told_and_the_engine_serves(
    shared: World,
) -> None:
    """Here a file lies where its folder would be."""
    (shared.folder / "share").write_text("in the way")
    boot = await shared.boot("not saved", seen=healthy(shared))
    assert boot.of_cache[0] == "not fetched"


async def test_a_share_that_hangs_is_not_waited_for(shared: World) -> None:
    """A pipe that nobody writes into is such a file."""
    place = shared.folder / "share" / TAR
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    boot = await shared.boot(fetch_seconds=0.1)
    assert any("too long" in line for line in boot.lines)


@pytest.mark.parametrize(("age_seconds", "outcome"), [(0, "not saved"), (3600, "saved")])
async def test_two_replicas_do_not_write_one_file(
    shared: World, age_seconds: int, outcome: str
) -> None:
    """One that was ended while it wrote is not waited for."""
    part = shared.folder / "share" / f"{TAR}.part"
    part.parent.mkdir(parents=True)
    part.write_text("half")
    now = part.stat().st_mtime
    os.utime(part, (now, now - age_seconds))
    boot = await shared.boot(f"e-cache: {outcome}")
    assert boot.of_cache[-1].startswith(outcome)
    assert (TAR in shared.files) is (outcome == "saved")
