"""Runs in the engine's container, before it: carries what vLLM compiles to its next boot."""

# Its text reaches the container in a variable, without comments; so: the standard library alone,
# of Python 3.10 or newer, and no line of a text that begins with #.
import contextlib
import functools
import hashlib
import http.client
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 4 * 2**30
MOST_SAVES = 3  # some files are new at each boot (Inductor's aotautograd; vLLM 0.32 on a CPU)
CHUNK = 2**20
LOGIN = "/computeMetadata/v1/instance/service-accounts/default/token"
# Neither the metadata server nor the engine is behind a proxy.
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Unfit(Exception):
    """It is whole, and was made for something else."""


class Folder:
    """A share that is mounted."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def fetch(self, name: str) -> Any:
        return (self.path / name).open("rb")

    def save(self, name: str, file: IO[bytes]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        part = self.path / f"{name}.part"
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime < 600:
                raise OSError("another replica saves one")
            part.unlink()
        with part.open("xb") as out:
            shutil.copyfileobj(file, out, CHUNK)
        part.replace(self.path / name)

    def put_aside(self, name: str, other: str) -> None:
        (self.path / name).replace(self.path / other)


class Bucket:
    """A folder of Cloud Storage, by its JSON API; source: its reference, read 2026-11-29."""

    def __init__(self, url: str, services: dict[str, Any]) -> None:
        bucket, _, self.folder = url[len("gs://") :].partition("/")
        self.path = f"/storage/v1/b/{bucket}/o"
        self.generation = "0"  # of what a save replaces
        self.storage = services.get("storage", "https://storage.googleapis.com")
        self.metadata = services.get("metadata", "http://metadata.google.internal")

    def named(self, name: str) -> str:
        return urllib.parse.quote(f"{self.folder}/{name}", safe="")

    def send(self, method: str, path: str, data: Any = None, **headers: str) -> Any:
        wanted = urllib.request.Request(self.metadata + LOGIN)
        wanted.add_header("Metadata-Flavor", "Google")
        try:
            with ask(wanted, timeout=10) as answer:
                token = json.load(answer)["access_token"]
        except urllib.error.HTTPError as exc:
            raise PermissionError(f"the metadata server gives no token: {exc}") from exc
        request = urllib.request.Request(self.storage + path, data, headers, method=method)
        request.add_unredirected_header("Authorization", f"Bearer {token}")
        return ask(request, timeout=30)

    def fetch(self, name: str) -> Any:
        try:
            answer = self.send("GET", f"{self.path}/{self.named(name)}?alt=media")
        except urllib.error.HTTPError as exc:
            if exc.code in {403, 404}:  # who may not list a bucket is told of no name there
                raise FileNotFoundError from exc
            raise
        if not (generation := answer.headers["x-goog-generation"]):
            raise ConnectionError("the answer was cut off")
        self.generation = generation
        return answer

    def save(self, name: str, file: IO[bytes]) -> None:
        where = f"/upload{self.path}?uploadType=media&name={self.named(name)}"
        size = str(os.fstat(file.fileno()).st_size)
        headers = {"Content-Type": "application/x-tar", "Content-Length": size}
        self.send("POST", f"{where}&ifGenerationMatch={self.generation}", file, **headers).close()

    def put_aside(self, name: str, other: str) -> None:
        here, to = f"{self.path}/{self.named(name)}", f"rewriteTo{self.path[11:]}"
        whole = {"Content-Type": "application/json"}
        self.send("POST", f"{here}/{to}/{self.named(other)}", b"{}", **whole).close()
        self.send("DELETE", f"{here}?ifGenerationMatch={self.generation}").close()
        self.generation = "0"


class Supervisor:
    """The engine, and the cache that it is given and leaves."""

    def __init__(self, cache: dict[str, Any], root: Path, command: list[str]) -> None:
        self.key, self.health, self.wanted = cache["key"], cache["health"], cache["facts"]
        self.root, self.command = root, command
        self.every, self.patience = cache.get("poll_seconds", 1), cache.get("fetch_seconds", 60)
        store = cache["store"]
        self.store = Bucket(store, cache) if store.startswith("gs://") else Folder(store)
        self.carried: set[str] = set()
        self.saves = 0
        self.engine: subprocess.Popen[bytes] | None = None
        self.stopped = self.answered = False

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """Return what a cache must have been made for, and what only the container knows of it."""
        found = {"vllm": version("vllm"), "torch": version("torch"), **self.wanted}
        if found["accelerator"] == "cpu":  # native code, of this very processor
            found["cpu"] = processor()
        return found

    def main(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.forward)
        self.carry()
        code = self.run()
        if self.carried and not self.answered and self.stopped:
            say(f"stopped before the first answer, with {self.key} in use")
        elif self.carried and not self.answered and code:
            self.put_aside(f"the engine ended with {code} before its first answer; it starts cold")
            code = self.run()
        return code

    def forward(self, number: int, _frame: Any) -> None:
        self.stopped = True
        if self.engine is None:
            sys.exit(128 + number)
        self.engine.send_signal(number)

    def run(self) -> int:
        """Run the engine to its end; return its code as a shell says it."""
        self.engine = subprocess.Popen(self.command, start_new_session=True)
        if self.stopped:
            self.engine.terminate()
        ended = threading.Event()
        threading.Thread(target=self.watch, args=(ended,), daemon=True).start()
        code = self.engine.wait()
        ended.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.engine.pid, signal.SIGKILL)  # workers that hold the accelerator
        return 128 - code if code < 0 else code

    def watch(self, ended: threading.Event) -> None:
        """Save what it compiled, once it has answered."""
        unready = contextlib.suppress(OSError, http.client.HTTPException)
        while not self.answered:
            if ended.wait(self.every):
                return
            with unready, ask(self.health, timeout=10):
                self.answered = True
        os.nice(19)  # on Linux of this thread alone
        try:
            self.save()
        except Exception as exc:  # noqa: BLE001  whatever it is: the engine serves on
            say(f"not saved: {why(exc)}")

    def carry(self) -> None:
        """Unpack what the boot before left; whatever is wrong with it, the engine starts."""
        began = time.monotonic()
        failed: list[OSError] = []
        try:
            self.empty()
            with tempfile.TemporaryFile() as file:
                fetching = threading.Thread(target=self.fetch, args=(file, failed), daemon=True)
                fetching.start()
                fetching.join(self.patience)
                if failed or fetching.is_alive():
                    raise failed[0] if failed else TimeoutError("it took too long")
                self.carried = self.unpack(file)
                size = mib(file.seek(0, os.SEEK_END))
            say(f"carried {self.key}, {size} in {time.monotonic() - began:.1f} s")
        except FileNotFoundError:
            say(f"none for {self.key} yet")
        except Unfit as exc:
            say(f"not used {self.key}: {exc}")
        except OSError as exc:
            self.empty()
            say(f"not fetched {self.key}: {why(exc)}")
        except Exception as exc:  # noqa: BLE001  bytes can be wrong in every way
            self.put_aside(why(exc))

    def fetch(self, file: IO[bytes], failed: list[OSError]) -> None:
        """Copy what the store has, in a thread: a share that hangs is not waited for."""
        ends = time.monotonic() + self.patience
        try:
            with self.store.fetch(f"{self.key}.tar") as answer:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    if file.tell() > MOST_BYTES or time.monotonic() > ends:
                        raise OSError("too large to be read in time")
                if getattr(answer, "length", None):
                    raise OSError("the answer was cut off")
        except OSError as exc:
            failed.append(exc)
        except Exception as exc:  # noqa: BLE001  of the way, not of the cache
            failed.append(OSError(why(exc)))

    def unpack(self, file: IO[bytes]) -> set[str]:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            manifest, *members = tar
            text = tar.extractfile(manifest)
            made = json.loads(text.read(CHUNK) if text else "")
            for name, value in self.facts.items():
                if made["facts"].get(name) != value:
                    raise Unfit(f"it was made with another {name}")
            if digest(file, manifest.offset_data + padded(manifest.size)) != made["sha256"]:
                raise ValueError("its checksum is another")
            if not all(member.isfile() for member in members):
                raise ValueError("it holds more than files")
            tar.extractall(self.root, members, filter="data")
        self.saves = int(made["saves"])
        return {member.name for member in members}

    def save(self) -> None:
        """Pack what the engine has compiled, if that is more than was carried."""
        began, below = time.monotonic(), self.root.rglob("*")
        files = {one for one in below if one.is_file() and not one.is_symlink()}
        found = {str(one.relative_to(self.root)) for one in files}
        if found <= self.carried or self.saves >= MOST_SAVES:
            return say(f"nothing new for {self.key}")
        with tempfile.TemporaryFile() as file:
            start = file.write(self.head("0" * 64))
            with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
                for name in sorted(found):
                    with contextlib.suppress(FileNotFoundError):
                        tar.add(self.root / name, name)
            if (size := file.tell()) > MOST_BYTES:
                raise ValueError(f"{mib(size)} are too much")
            sha256 = digest(file, start)
            file.seek(0)
            file.write(self.head(sha256))
            file.seek(0)
            self.store.save(f"{self.key}.tar", file)
        say(f"saved {self.key}, {mib(size)} in {time.monotonic() - began:.1f} s")

    def head(self, sha256: str) -> bytes:
        """Return the tar's first member: what the others were made for, and their checksum."""
        made = {"facts": self.facts, "sha256": sha256, "saves": self.saves + 1}
        text = json.dumps(made).encode()
        named = tarfile.TarInfo("manifest.json")
        named.size = len(text)
        return named.tobuf() + text.ljust(padded(len(text)), b"\0")

    def put_aside(self, reason: str) -> None:
        """Let no later boot find it; this one goes on without."""
        self.empty()
        self.carried, self.saves = set(), 0
        try:
            self.store.put_aside(f"{self.key}.tar", f"{self.key}.aside.tar")
        except Exception as exc:  # noqa: BLE001  a store that is read-only, or not there
            return say(f"not used {self.key}: {reason}; it stays there: {why(exc)}")
        say(f"put aside {self.key}: {reason}")

    def empty(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True, exist_ok=True)


def padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def digest(file: IO[bytes], start: int) -> str:
    file.seek(start)
    sha256 = hashlib.sha256()
    while chunk := file.read(CHUNK):
        sha256.update(chunk)
    return sha256.hexdigest()


def version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "none"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    flags = [line for line in lines if line.startswith(("flags", "Features"))]
    return hashlib.sha256("".join(flags[:1]).encode()).hexdigest()[:16]


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def why(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


def say(text: str) -> None:
    sys.stdout.write(f"compile-cache: {' '.join(text.split())[:300]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.pop("COMPILE_CACHE_PROGRAM", None)
    given = json.loads(os.environ.pop("COMPILE_CACHE"))
    os._exit(Supervisor(given, Path(os.environ["VLLM_CACHE_ROOT"]), sys.argv[1:]).main())
