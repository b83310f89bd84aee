"""Models in folders of files and on the Hub: whether they are whole and may be fetched."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from huggingface_hub import HfApi, errors
from pydantic import SecretStr

from backends.base import StoredModel
from backends.common.concurrency import side_by_side
from backends.common.preflight import Answer, Question
from core.records import DeploymentSpec, listed
from core.reply import note
from core.settings import Settings
from planner.model import MOST_JSON_BYTES, parse_json

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
LENGTH_BYTES: Final = 8
"""Before a safetensors header: its length."""
_PART: Final = re.compile(r"^(.*)-\d+-of-(\d+)(\.\w+)$")
_HUB_ID: Final = re.compile(r"^[\w.-]+/[\w.-]+$")
_NAMED: Final = 5


class Completeness(NamedTuple):
    """What was found; None cannot be told."""

    complete: bool | None
    detail: str


def judge_files(files: Mapping[str, int], index: Mapping[str, Any] | None) -> Completeness:
    """Judge a folder by the sizes of its files in bytes and its index, if it has one."""
    tensors = sorted(name for name in files if name.endswith(".safetensors"))
    gguf = sorted(name for name in files if name.endswith(".gguf"))
    missing: list[str] = []
    if not (tensors or gguf):
        missing.append("No weights: neither safetensors nor GGUF files.")
    if empty := [name for name in (*tensors, *gguf) if not files[name]]:
        missing.append(f"Empty: {listed(empty, most=_NAMED)}.")
    if index is not None:
        missing += _short_of(files, index)
    missing += _unnumbered((*tensors, *gguf))
    if not gguf:  # which hold config and tokenizer
        if CONFIG not in files:
            missing.append(f"No {CONFIG}.")
        if not any(name in files for name in TOKENIZERS):
            missing.append("No tokenizer.")
    if missing:
        return Completeness(complete=False, detail=" ".join(missing))
    if index is None and not tensors:
        return Completeness(None, "GGUF files have no index: only names were compared.")
    return Completeness(complete=True, detail="")


def _short_of(files: Mapping[str, int], index: Mapping[str, Any]) -> Iterator[str]:
    wanted = _listed(index)
    lost = sorted(wanted - set(files))
    if not wanted:
        yield f"{INDEX} names no file."
    if lost:
        yield f"The index names what is not there: {listed(lost, most=_NAMED)}."
        return
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    there = sum(files[name] for name in wanted)
    if isinstance(total, int | float) and there < total:
        yield f"The index counts {int(total):,} bytes of tensors, the files have {there:,}."


def _unnumbered(names: Sequence[str]) -> Iterator[str]:
    """Find the gaps among files that count themselves."""
    for stem, last, end in sorted({one.groups() for one in map(_PART.match, names) if one}):
        numbers = range(1, min(int(last), 10_000) + 1)
        wanted = (f"{stem}-{number:0{len(last)}}-of-{last}{end}" for number in numbers)
        if lost := [one for one in wanted if one not in names]:
            yield f"Not there: {listed(lost, most=_NAMED)}."


def _listed(index: Mapping[str, Any]) -> set[str]:
    named = index.get("weight_map")
    return {str(name) for name in named.values()} if isinstance(named, Mapping) else set()


def model_of(config: Mapping[str, Any] | None) -> str | None:
    """Give the Hub's id that a config names; a path of whoever saved it is none."""
    name = (config or {}).get("_name_or_path")
    return name if isinstance(name, str) and _HUB_ID.match(name) else None


def parts(files: Mapping[str, int], index: Mapping[str, Any] | None) -> list[str]:
    """Give the safetensors files that there are of those that count."""
    listed = _listed(index) if index is not None else set(files)
    return sorted(name for name in listed if name in files and name.endswith(".safetensors"))


def header_length(start: bytes) -> int | None:
    """Read how long a safetensors header is; None where that is none."""
    length = int.from_bytes(start, "little")
    return length if len(start) == LENGTH_BYTES and length <= MOST_JSON_BYTES else None


def whole_size(header: bytes) -> int | None:
    """Give the bytes that a safetensors file with this header has; None where that is none."""
    try:
        entries = parse_json(header)
        ends = [
            entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"
        ]
        return LENGTH_BYTES + len(header) + int(max(ends, default=0))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


ENDINGS: Final = ("safetensors", "gguf", "json", "model", "txt", "jinja", "tiktoken")
"""Of the files that models are made of."""
MOST_FILES: Final = 5000
_MOST_MODELS: Final = 50
_MOST_JSON_BYTES: Final = 20_000_000
_WEIGHTS: Final = (".safetensors", ".gguf")
_AT_ONCE: Final = 8


class File(NamedTuple):
    """A file that can be read in parts."""

    size_bytes: int
    read: Callable[[int, int], Awaitable[bytes]]
    """Gives its bytes from an offset on, so many; raises an error of ours."""


Files = Mapping[str, File]
"""By their paths, or those of one folder by their names in it."""


def folders(files: Files) -> dict[str, dict[str, File]]:
    """Sort files by the folder that they lie in."""
    found: dict[str, dict[str, File]] = {}
    for path, file in files.items():
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, {})[name] = file
    return found


async def models_among(files: Files, root: str) -> list[StoredModel]:
    """Give every folder that holds weights, or a config that waits for them, in order of names.

    `root` is what their locations begin with. More than a few dozen are counted and not shown.
    """
    found = sorted(
        (folder, held)
        for folder, held in folders(files).items()
        if any(name == CONFIG or name.endswith(_WEIGHTS) for name in held)
    )
    if len(found) > _MOST_MODELS:
        note(f"{root} holds {len(found)} models; the first {_MOST_MODELS} are shown.")
    return await side_by_side(
        [
            partial(judge_folder, f"{root}/{folder}".rstrip("/"), held)
            for folder, held in found[:_MOST_MODELS]
        ]
    )


def limited(files: dict[str, File], where: str) -> dict[str, File]:
    """Keep no more files than are looked at, and say so if there were more."""
    if len(files) <= MOST_FILES:
        return files
    note(f"{where} holds more than {MOST_FILES} such files; only these were looked at.")
    return dict(list(files.items())[:MOST_FILES])


async def judge_folder(location: str, files: Files) -> StoredModel:
    """Judge one folder by its names, its sizes and its index."""
    config = await json_of(files, CONFIG)
    index = await json_of(files, INDEX)
    verdict = judge_files(sizes_of(files), index)
    return StoredModel(
        location=location,
        model=model_of(config),
        files=len(files),
        size_bytes=sum(sizes_of(files).values()),
        complete=verdict.complete,
        detail=verdict.detail,
    )


async def judge_whole(files: Files) -> Completeness:
    """Judge one folder as `stored` does, and every safetensors file by its own header."""
    index = await json_of(files, INDEX)
    sizes = sizes_of(files)
    verdict = judge_files(sizes, index)
    if verdict.complete is False:
        return verdict
    wrong = await _cut_off(files, index)
    if wrong:
        return Completeness(complete=False, detail=" ".join(wrong))
    seen = f"{len(files)} files, {sum(sizes.values()) / 2**30:.1f} GiB"
    return Completeness(verdict.complete, f"{seen}. {verdict.detail}".strip())


async def json_of(files: Files, name: str) -> Mapping[str, Any] | None:
    """Read a small JSON object, None where there is none or it is something else."""
    file = files.get(name)
    if file is None or not 0 < file.size_bytes <= _MOST_JSON_BYTES:
        return None
    try:
        said = parse_json(await file.read(0, file.size_bytes))
    except ValueError:
        return None
    return said if isinstance(said, Mapping) else None


def sizes_of(files: Files) -> dict[str, int]:
    """Give the bytes of each."""
    return {name: file.size_bytes for name, file in files.items()}


async def _cut_off(files: Files, index: Mapping[str, Any] | None) -> list[str]:
    """Compare every file with what its own header says: an index only knows their sum."""
    names = parts(sizes_of(files), index)
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def look(name: str) -> int | None:
        async with limiter:
            return await _expected(files[name])

    expected = await side_by_side([partial(look, name) for name in names])
    return [
        f"{name} is no safetensors file."
        if wanted is None
        else f"{name} has {files[name].size_bytes:,} bytes of {wanted:,}."
        for name, wanted in zip(names, expected, strict=True)
        if wanted != files[name].size_bytes
    ]


async def _expected(file: File) -> int | None:
    first = LENGTH_BYTES
    if file.size_bytes < first:
        return None
    length = header_length(await file.read(0, first))
    if length is None or first + length > file.size_bytes:
        return None
    return whole_size(await file.read(first, length))


def ask_hub(model: str, token: SecretStr | None, endpoint: str | None = None) -> Answer:
    """Ask first as anybody, then with the token; blocks as long as the Hub does.

    `endpoint` is another Hub than the public one.
    """
    unreachable: type[Exception] = vars(errors)["HTTPError"]  # of its own HTTP library
    api, page = HfApi(endpoint), f"https://huggingface.co/{model}"
    try:
        try:
            api.auth_check(model, token=False)
        except errors.RepositoryNotFoundError:  # gated ones among them
            if not token:
                raise
            api.auth_check(model, token=token.get_secret_value())
            return Answer(passed=True, detail="It is gated or private, and HF_TOKEN may read it.")
    except errors.GatedRepoError:  # is a RepositoryNotFoundError, so it stands first
        if token:
            detail = "It is gated, and the owner of HF_TOKEN has not been let in."
            fix = (
                f"Accept its licence at {page} as the owner of that token; with a fine-grained"
                " token, allow it to read gated repositories."
            )
        else:
            detail = "It is gated, and no HF_TOKEN is set."
            fix = f"Accept its licence at {page}, then call save_hf_token with a token of yours."
        return Answer(passed=False, detail=detail, fix=fix)
    except errors.RepositoryNotFoundError:
        owner = "your HF_TOKEN" if token else "somebody without a token"
        return Answer(
            passed=False,
            detail=f"The Hub has no model {model}, or does not show it to {owner}.",
            fix="Correct its name (OWNER/MODEL); for a private one call save_hf_token.",
        )
    except (unreachable, OSError, ValueError) as exc:
        why = (str(exc).splitlines() or [""])[0]
        return Answer(passed=None, detail=f"The Hub cannot be asked: {type(exc).__name__} {why}")
    return Answer(passed=True, detail="It is there for everybody.")


_SECONDS: Final = 15.0


def hub_questions(settings: Settings, spec: DeploymentSpec) -> Iterator[Question]:
    """Ask the Hub where the weights come from there."""
    if spec.from_hub:
        question = f"{spec.model} can be fetched from the Hub"
        yield Question(question, partial(on_hub, settings, spec.model))


async def on_hub(settings: Settings, model: str) -> Answer:
    """Ask the Hub, but for a rehearsal."""
    if settings.rehearsal:
        return Answer(passed=None, detail="In a rehearsal nobody asks the real Hub.")
    verdict: Answer | None = None
    with anyio.move_on_after(_SECONDS):
        verdict = await anyio.to_thread.run_sync(
            ask_hub, model, settings.hf_token, abandon_on_cancel=True
        )
    if verdict is None:
        return Answer(passed=None, detail=f"The Hub did not answer within {_SECONDS:.0f} s.")
    return verdict
