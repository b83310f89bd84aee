"""vLLM's flags: what they change, what vLLM makes of those left out, by its version."""

import functools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import Field

from core.environment import read_toml
from core.errors import InvalidArgument, Unsupported
from core.records import DeploymentSpec, ModelShape, Record, apart, valid
from planner.kv import KvAsk
from planner.places import Accelerator

_VERSIONS_FILE: Final = Path(__file__).with_name("versions.toml")
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


class Profile(Record):
    """What a version of vLLM does by itself."""

    version: str
    gpu_memory_utilization: float
    in_flight_batches: int
    """Batches whose blocks a request may hold at once, with async scheduling where it has that."""
    graphs_estimated: bool
    """CUDA graphs are measured and taken off the KV cache."""
    tokens_logged: Literal["blocks", "concurrency"]
    """Blocks of one group times their length, or concurrency times length."""
    sampler: Literal["sort", "mask", "v2"] = "mask"
    """How the profiled sampler leaves out improbable tokens: all sorted, or masked in place; the
    V2 model runner's leaves out none."""
    keeps_workspace: bool = True
    """What experts work in stays allocated while the sampler is profiled."""
    fuses_all_reduce: bool = True
    """On SM 9.0 and 10.x with several accelerators, in buffers of its own."""
    mxfp4_on_hopper: Literal["triton", "marlin"] = "marlin"
    """Whose layout MXFP4 experts are padded for on SM 9.0."""
    libraries_gib: float = 0.25
    """Growth of the CUDA context and libraries while profiling, on one H100."""
    log: str


@functools.cache
def profiles() -> tuple[Profile, ...]:
    """Give every row, oldest first."""
    rows = read_toml(_VERSIONS_FILE)
    return tuple(valid(Profile, {"version": name, **row}) for name, row in rows.items())


def profile(version: str | None) -> Profile:
    """Give the row nearest below a version: the newest for none, the oldest for an older one.

    Raises:
        InvalidArgument: It is no version.
    """
    if version is None:
        return profiles()[-1]
    wanted = numbers(version)
    below = [row for row in profiles() if numbers(row.version) <= wanted]
    return below[-1] if below else profiles()[0]


@functools.cache
def numbers(version: str) -> tuple[int, ...]:
    """Give major, minor and patch, to compare by.

    Raises:
        InvalidArgument: It is no version.
    """
    match = _VERSION.match(version)
    if not match:
        raise InvalidArgument(f"{version} is no vLLM version.", fix="Write it as 0.32.0.")
    return tuple(int(part or 0) for part in match.groups())


T = TypeVar("T")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_UNITS: Final = {"": 1} | {
    letter: base**power
    for letters, base in (("kmgt", 10**3), ("KMGT", 2**10))
    for power, letter in enumerate(letters, start=1)
}


class Flags(Record):
    """What vLLM is started with; names and defaults are vLLM's."""

    max_model_len: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = Field(default=None, ge=0)
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    quantization: str | None = None
    dtype: str | None = None
    cpu_offload_gb: float | None = Field(default=None, ge=0)
    enforce_eager: bool = False
    block_size: int | None = Field(default=None, ge=1)
    num_gpu_blocks_override: int | None = Field(default=None, ge=1)
    async_scheduling: bool | None = None
    language_model_only: bool = False
    """No vision or audio tower is loaded."""
    disable_chunked_mm_input: bool = False
    disable_hybrid_kv_cache_manager: bool = False
    hf_overrides: str | None = Field(default=None, exclude=True)
    """What of the model's configuration is another, as JSON; of a plan it changes the length."""
    vllm_version: str | None = None
    """Left out, the newest that is known."""

    @classmethod
    def of(cls, spec: DeploymentSpec, *, vllm_version: str | None = None) -> Self:
        """Read the flags of a deployment, its engine_args last so that they win.

        Raises:
            InvalidArgument: A size or number in it cannot be read.
        """
        values = {name: getattr(spec, name) for name in cls.model_fields if hasattr(spec, name)}
        values["kv_cache_memory_bytes"] = size_in_bytes(spec.kv_cache_memory_bytes)
        values["vllm_version"] = vllm_version
        return valid(cls, {**values, **engine_flags(spec.engine_args)})

    def computed(self) -> dict[str, Any]:
        """Give what a layout sets; where it says nothing, the word of a person stands."""
        said = self.model_dump(exclude={"vllm_version"}, exclude_none=True)
        return {name: value for name, value in said.items() if value is not False}


def size_in_bytes(size: str | None) -> int | None:
    """Read a size as vLLM does: 25k is 25,000 and 25K is 25,600.

    >>> size_in_bytes("64M")
    67108864

    Raises:
        InvalidArgument: It is no size.
    """
    if size is None:
        return None
    match = _SIZE.fullmatch(size)
    if not match:
        raise InvalidArgument(f"{size} is not a size.", fix="Give bytes, or a number with K, M, G.")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def _length(size: str) -> int | None:
    """Read a length in tokens; `auto` and -1 are as if nothing was said."""
    return None if size in {"auto", "-1"} else size_in_bytes(size)


_READ_AS: Final[Mapping[str, Callable[[str], object]]] = {
    "max_model_len": _length,
    "kv_cache_memory_bytes": size_in_bytes,
    "max_num_batched_tokens": size_in_bytes,
}
"""How vLLM reads a value, where that is another way than its type says."""
_ALSO: Final = {
    "--device-memory-utilization": "gpu_memory_utilization",
    "-tp": "tensor_parallel_size",
    "-q": "quantization",
}
"""Other words for the same."""


def _kind(name: str) -> Callable[[str], object] | None:
    """Return how a flag's value is read; None of a switch."""
    annotation = Flags.model_fields[name].annotation
    kinds = get_args(annotation) or (annotation,)
    return None if bool in kinds else _READ_AS.get(name, kinds[0])


_NAMES_OF: Final = {
    f"--{name.replace('_', '-')}": name for name in Flags.model_fields if name != "hf_overrides"
} | _ALSO
_SWITCHES: Final = {
    flag.replace("--", f"--{no}", 1): (name, not no)
    for flag, name in _NAMES_OF.items()
    if _kind(name) is None
    for no in ("", "no-")
}
_VALUED: Final = {
    flag: (name, kind) for flag, name in _NAMES_OF.items() if (kind := _kind(name)) is not None
}


def engine_flags(words: Sequence[str]) -> dict[str, object]:
    """Read those of a deployment's engine_args that change how much memory it takes.

    Raises:
        InvalidArgument: A value cannot be read.
    """
    values: dict[str, object] = {}
    for given, joined, value in _pairs(words):
        flag = given.replace("_", "-")
        if flag in _SWITCHES:
            name, switch = _SWITCHES[flag]
            if joined:
                plain, no = flag.removeprefix("--no-").removeprefix("--"), flag.startswith("--no-")
                raise InvalidArgument(
                    f"engine_args gives {flag} a value, and it takes no value.",
                    fix=f"Give {flag} alone, or --{'' if no else 'no-'}{plain}.",
                )
            values[name] = switch
        elif flag in _VALUED:
            name, kind = _VALUED[flag]
            values[name] = _read(flag, value, kind)
    overrides = _read("--hf-overrides", words, _overrides)
    return {**values, "hf_overrides": json.dumps(overrides)} if overrides else values


def unplanned_flags(words: Sequence[str]) -> list[str]:
    """Return the flags among some words that a plan does not look at, or that are misspelt."""
    looked_at = {*_SWITCHES, *_VALUED, "--hf-overrides"}
    names = (given.replace("_", "-") for given, _, _ in _pairs(words))
    return [
        name for name in names if name.startswith("--") and name.partition(".")[0] not in looked_at
    ]


def other_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the flags that `Flags` holds nothing of, each with its values."""
    for group in _by_flag(words):
        flag = group[0].partition("=")[0].replace("_", "-")
        if flag not in _SWITCHES and flag not in _VALUED:
            yield from group


def words_beside(words: Sequence[str], chosen: Flags, names: Collection[str]) -> Iterator[str]:
    """Yield the flags that give none of `names` another value than `chosen`, each with its values.

    >>> words = ["--max-model-len", "9000", "--seed=3"]
    >>> list(words_beside(words, Flags(max_model_len=8192), ["max_model_len"]))
    ['--seed=3']
    """
    for group in _by_flag(words):
        said = engine_flags(group)
        if all(getattr(chosen, name) == said[name] for name in said.keys() & names):
            yield from group


def _by_flag(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield each flag together with its values."""
    group: tuple[str, ...] = ()
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            if group:
                yield group
            group = (word,)
        elif group:
            group = (*group, word)
    if group:
        yield group


_UNCOUNTED: Final = {
    "--speculative-config": "draft model",
    "-sc": "draft model",
    "--spec-model": "draft model",
    "--enable-lora": "adapters",
}
"""Flags by which vLLM loads more beside the model, and what that is.

source: vllm 0.32.0 engine/arg_utils.py, read 2026-11-30
"""
_WITHOUT_A_DRAFT: Final = re.compile(r"ngram|suffix")
"""Methods of speculation that load nothing."""


def uncounted(words: Sequence[str]) -> dict[str, str]:
    """Return the flags among some words by which more is loaded than is planned, and what that is.

    >>> uncounted(["--spec-model", "google/gemma-4-E2B-it", "--enable-lora"])
    {'--spec-model': 'draft model', '--enable-lora': 'adapters'}
    """
    found = {}
    for given, _, value in _pairs(words):
        flag = given.partition(".")[0].replace("_", "-")
        if flag in _UNCOUNTED and not _WITHOUT_A_DRAFT.search(value):
            found[flag] = _UNCOUNTED[flag]
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
    """Yield each word as a flag, with whether a value is joined to it, else the next word."""
    for word, following in pairwise((*words, "")):
        given, joined, value = word.partition("=")
        yield given, bool(joined), value or following


def _read(flag: str, value: T, kind: Callable[[T], object]) -> object:
    try:
        return kind(value)
    except ValueError as exc:
        raise InvalidArgument(
            f"engine_args gives {flag} what is no value for it.",  # nor told: it may be a secret
            fix="Give the value after the flag, as the next word or behind `=`.",
        ) from exc


def _overrides(words: Sequence[str]) -> dict[str, Any]:
    """Give what a command line overrides: its last JSON, or all of its dotted keys, which win.

    Raises:
        ValueError: It is no JSON of an object.
    """
    whole: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for given, _, value in _pairs(words):
        name, dot, key = given.partition(".")
        if name.replace("_", "-") != "--hf-overrides":
            continue
        found = _dotted(value) if dot else _json(value)
        if dot:
            dotted[key] = found
        elif isinstance(found, dict):
            whole = found
        else:
            raise ValueError(value[:60])  # of a text, not of our own types
    return dotted or whole


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError(text[:60]) from exc


def _dotted(text: str) -> object:
    """Read a dotted key's value as vLLM does: JSON, a size such as 32k, or words."""
    try:
        return _json(text)
    except ValueError:
        return size_in_bytes(text) if _SIZE.fullmatch(text) else text


def positions(model: ModelShape, flags: Flags) -> int | None:
    """Give the longest sequence that a model takes with these flags; None where nobody knows."""
    said, waiting = [], list(json.loads(flags.hf_overrides or "{}").items())
    while waiting:
        key, value = waiting.pop(0)
        said.append((key, value))
        waiting += value.items() if isinstance(value, Mapping) else ()
    if any("rope" in key for key, _ in said):
        return None
    named = [value for key, value in said if key.split(".")[-1] == "max_position_embeddings"]
    sizes = [value for value in named if isinstance(value, int) and value > 0]
    return sizes[-1] if sizes else model.max_position_embeddings


_OURS: Final = {
    "--host": "it listens where the target can protect it",
    "--port": "give it as `port`",
    "--uds": "on this machine access=internal makes it listen on a unix socket",
    "--root-path": "the engine's key protects paths by how they begin",
    "--api-key": "every deployment gets a random key of its own",
    "--served-model-name": "it follows from the model",
    "--model": "give it as `model`",
    "--hf-token": "set HF_TOKEN; no secret belongs on a command line",
}
_GUARDED: Final = (
    _SWITCHES.keys()
    | _VALUED.keys()
    | {
        "--hf-overrides",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--load-format",
        "--safetensors-load-strategy",
        "--limit-mm-per-prompt",
    }
)
"""Flags that are looked for by their whole names."""
_ENGINE_WORDS_FLAG: Final = re.compile(r"(?:^|\s)(--[A-Za-z][\w-]*)")
_ATTACHED: Final = re.compile(r"-q[^=]")


def engine_words(words: Sequence[str]) -> tuple[str, ...]:
    """Give engine_args one flag or value each.

    Raises:
        InvalidArgument: One is a flag that this project sets itself, or an abbreviation.
    """
    found = tuple(part for word in words for part in apart(word))
    check_words(found)
    return found


def check_words(words: Sequence[str]) -> None:
    """Refuse flags that are set elsewhere, such as keys, and abbreviated ones; tell no value.

    Raises:
        InvalidArgument: One of them is so.
    """
    # Also those in the value of another; argparse takes --api-k for --api-key as well.
    for found in _ENGINE_WORDS_FLAG.findall("\n".join(words)):
        flag = found.replace("_", "-")
        if ours := next((name for name in _OURS if name.startswith(flag)), None):
            raise InvalidArgument(
                f"engine_args may not hold {flag}: {_OURS[ours]}.", fix="Leave it out."
            )
    for word in words:
        given = re.split(r"[=.]", word, maxsplit=1)[0].replace("_", "-")
        whole: list[str] = []
        if _ATTACHED.match(word):
            given, whole = "-q", ["--quantization"]
        elif given[2:] and given.startswith("--") and given not in _GUARDED:
            whole = sorted(name for name in _GUARDED if name.startswith(given))
        if whole:
            raise InvalidArgument(
                f"engine_args abbreviates a flag: {given}.", fix=f"Write {' or '.join(whole)}."
            )


_PARSERS_FILE: Final = Path(__file__).with_name("parsers.toml")
Kind = Literal["tools", "reasoning"]
_NAMES: Final[dict[Kind, frozenset[str]]] = {
    "tools": frozenset(
        ("--tool-call-parser", "--enable-auto-tool-choice", "--no-enable-auto-tool-choice")
    ),
    "reasoning": frozenset(("--reasoning-parser",)),
}
"""Flags by which somebody chooses another parser, or none."""
_GIVES: Final[dict[Kind, str]] = {
    "tools": "calls of tools are not read from its answers",
    "reasoning": "thoughts stay in `content`",
}
"""What is missing without one."""


class Family(Record):
    """Models whose answers are read by the same parsers."""

    model_types: str
    """What their types begin with."""
    since: str
    """The first version that has them."""
    tools: tuple[str, ...]
    reasoning: tuple[str, ...]


class Trouble(Record):
    """Versions in which a parser does harm."""

    of: Kind
    since: str
    until: str
    """The first without it."""
    left_out: bool
    """Whether the harm is worse than doing without the parser."""
    says: str
    sources: tuple[str, ...]

    def met(self, version: str) -> bool:
        """Whether this version has it."""
        return numbers(self.since) <= numbers(version) < numbers(self.until)


class Parsers(NamedTuple):
    """The flags to add, and what is to be known of them."""

    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@functools.cache
def _rows() -> tuple[Family, tuple[Trouble, ...]]:
    rows = read_toml(_PARSERS_FILE)
    return valid(Family, rows["gemma4"]), tuple(valid(Trouble, one) for one in rows["trouble"])


def parsers_for(model_type: str | None, version: str | None, engine_args: Sequence[str]) -> Parsers:
    """Return what is added to a command line whose engine_args choose no parser of that kind.

    Nothing is added to a vLLM of which nobody knows the version: an unknown flag ends its boot.
    """
    family, troubles = _rows()
    given = {word.partition("=")[0].replace("_", "-") for word in engine_args}
    wanted: list[Kind] = [kind for kind, names in _NAMES.items() if not names & given]
    if not (wanted and (model_type or "").startswith(family.model_types)):
        return Parsers()
    if version is None:
        words = " ".join(word for kind in wanted for word in getattr(family, kind))
        why = "nobody knows which vLLM its image has"
        choose = f" Give them in engine_args if it has them: {words}."
        return Parsers(notes=(f"{_not_added(wanted, why)}{choose}",))
    if numbers(version) < numbers(family.since):
        why = f"vLLM {version} has none for it before {family.since}"
        return Parsers(notes=(_not_added(wanted, why),))
    flags, notes = list[str](), list[str]()
    for kind in wanted:
        found = next((one for one in troubles if one.of == kind and one.met(version)), None)
        said = f"{found.says} ({found.sources[-1]})" if found else ""
        if found and found.left_out:
            notes.append(_not_added([kind], f"in vLLM {version} {said}"))
            continue
        flags += getattr(family, kind)
        notes += [f"vLLM {version}: {said}."] if found else []
    return Parsers(tuple(flags), tuple(notes))


def _not_added(kinds: Sequence[Kind], why: str) -> str:
    which = " and ".join(f"--{'tool-call' if kind == 'tools' else kind}-parser" for kind in kinds)
    missing = ", and ".join(_GIVES[kind] for kind in kinds)
    return f"Without {which}: {why}; {missing}."


@functools.cache
def defaults() -> frozenset[str]:
    """Return the flags that are added by default, as `explain` writes them."""
    family, _ = _rows()
    return frozenset(word.replace("=", " ") for word in (*family.tools, *family.reasoning))


def without(words: Sequence[str]) -> tuple[str, ...]:
    """Return engine_args without the flags that were added by default."""
    family, _ = _rows()
    left = tuple(words)
    for added in (family.tools, family.reasoning, family.tools):
        if left[: len(added)] == added:
            left = left[len(added) :]
    return left


def added_in(words: Sequence[str]) -> tuple[str, ...]:
    """Return those flags of engine_args that `without` leaves out."""
    return tuple(words)[: len(words) - len(without(words))]


_LARGEST_ITEM_TOKENS: Final = 2496
"""Of Gemma 4's largest image or video: 32 frames of 70 tokens and 8 around them."""
_TPU_BATCHED: Final = {"v6e": 1024, "v5e": 512, "v5p": 256}
_ELEMENT_BYTES: Final = {
    "auto": 2,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
}


_NO_FP16: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types that vLLM does not run in float16: "numerical instability".

source: vllm 0.32.0 config/model.py _FLOAT16_NOT_SUPPORTED_MODELS, read 2026-11-23
"""


class Resolved(NamedTuple):
    """Every flag that matters, with a value."""

    profile: Profile
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    element_bytes: int
    """Of weights and activations."""
    tensor_parallel: int
    ask: KvAsk
    derivation: tuple[str, ...]


def resolve(model: ModelShape, accelerator: Accelerator, flags: Flags) -> Resolved:
    """Fill in the defaults of a version, an accelerator and a model.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
        Unsupported: The model's shape is not known.
    """
    if not (model.layers and model.groups):
        raise Unsupported(
            f"{model.model} cannot be planned.",
            fix="Give a folder with its config.json and safetensors files, or a catalog name.",
            cause=" ".join(model.unknown),
        )
    row, cpu = profile(flags.vllm_version), accelerator.kind == "cpu"
    if needs_float32(model, accelerator, flags):
        flags = flags.model_copy(update={"dtype": "float32"})
    own = positions(model, flags) or model.max_position_embeddings
    length = flags.max_model_len or own or 1
    seqs, batched = _batches(model, accelerator, flags, length)
    flights = {None: row.in_flight_batches, True: 2, False: 1}[flags.async_scheduling]
    ask = KvAsk(
        max_model_len=length,
        in_flight_tokens=batched * (1 if cpu else flights),  # there vLLM schedules one by one
        block_size=flags.block_size or (128 if cpu else 16),
        element_bytes=kv_element_bytes(flags),
        tensor_parallel=flags.tensor_parallel_size,
        longest=max(model.max_position_embeddings or 0, length),
        hybrid=not flags.disable_hybrid_kv_cache_manager,
        tokens_logged=row.tokens_logged,
        blocks_override=flags.num_gpu_blocks_override,
    )
    return Resolved(
        profile=row,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=flags.gpu_memory_utilization or row.gpu_memory_utilization,
        element_bytes=_element_bytes(flags.dtype or "auto"),
        tensor_parallel=flags.tensor_parallel_size,
        ask=ask,
        derivation=(
            f"vLLM {flags.vllm_version or 'of no given version'}: planned as {row.version}.",
            f"max_num_seqs = {seqs}, max_num_batched_tokens = {batched}",
        ),
    )


def refuses_fp16(model: ModelShape) -> bool:
    """Whether vLLM does not run this model in float16."""
    return model.model_type in _NO_FP16


def needs_float32(model: ModelShape, accelerator: Accelerator, flags: Flags) -> bool:
    """Whether vLLM takes float32 by itself: neither bf16 nor fp16 is possible there."""
    return not accelerator.bf16 and refuses_fp16(model) and (flags.dtype or "auto") == "auto"


def most_tokens_of_an_item(model: ModelShape, flags: Flags) -> int:
    """Tokens of the largest image or video that this model takes, 0 without a vision tower."""
    seen = model.vision and not flags.language_model_only
    return _LARGEST_ITEM_TOKENS if seen and (model.model_type or "").startswith("gemma4") else 0


def _batches(
    model: ModelShape, accelerator: Accelerator, flags: Flags, length: int
) -> tuple[int, int]:
    """Return how many sequences and tokens a step takes at most."""
    ways, memory = flags.tensor_parallel_size, accelerator.memory_gib or 0
    seqs, batched = 256, 2048
    if accelerator.kind == "cpu":
        seqs, batched = 128 * ways, 2048 * ways
    elif accelerator.kind == "tpu":
        batched = _TPU_BATCHED.get(accelerator.name, 2048)
    elif memory >= 160:
        seqs, batched = 1024, 16_384
    elif memory >= 70 and "a100" not in accelerator.device_name:
        seqs, batched = 1024, 8192
    seqs = flags.max_num_seqs or seqs
    if model.bidirectional_images:
        batched = max(batched, most_tokens_of_an_item(model, flags))
    batched = flags.max_num_batched_tokens or min(seqs * length, batched)
    return seqs if flags.max_num_seqs else min(seqs, batched), batched


def kv_element_bytes(flags: Flags) -> int:
    """Give the bytes of one number in the KV cache.

    Raises:
        InvalidArgument: Its type is none that is planned with.
    """
    kind = flags.kv_cache_dtype or "auto"
    if kind in {"fp8", "fp8_e4m3", "fp8_e5m2"}:
        return 1
    return _element_bytes((flags.dtype or "auto") if kind == "auto" else kind)


def _element_bytes(kind: str) -> int:
    if kind not in _ELEMENT_BYTES:
        raise InvalidArgument(
            f"{kind} is not planned.", fix=f"Use fp8 or one of {', '.join(_ELEMENT_BYTES)}."
        )
    return _ELEMENT_BYTES[kind]
