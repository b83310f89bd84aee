"""vLLM's flags: what they change, what vLLM makes of those left out, by its version."""

import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import Field

from core.errors import InvalidArgument, Unsupported
from core.records import DeploymentSpec, ModelShape, Record, apart, valid
from planner.kv import KvAsk
from planner.places import Accelerator

_Size = Callable[[str], int | None]

_OVERRIDES_FLAG: Final = "--hf-overrides"
_POSITIONS: Final = "max_position_embeddings"


def overrides_in(words: Sequence[str], size: _Size) -> dict[str, Any]:
    """Give what a command line overrides: its last JSON, or all of its dotted keys, which win.

    >>> overrides_in(["--hf-overrides.text_config.rope_theta", "10"], int)
    {'text_config.rope_theta': 10}

    Raises:
        ValueError: It is no JSON of an object.
    """
    whole: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for position, word in enumerate(words):
        given, joined, value = word.partition("=")
        name, dot, key = given.partition(".")
        if name.replace("_", "-") != _OVERRIDES_FLAG:
            continue
        value = value if joined else "".join(words[position + 1 : position + 2])
        if dot:
            dotted[key] = _value(value, size)
        else:
            whole = _object(value)
    return dotted or whole


def limit(overrides: Mapping[str, Any], own: int | None) -> int | None:
    """Give the positions of a model that has `own`; None where nobody knows them.

    >>> limit({"text_config": {"max_position_embeddings": 4096}}, 131072)
    4096
    """
    said = list(_leaves(overrides))
    if any("rope" in key for key, _ in said):
        return None
    named = [value for key, value in said if key.rpartition(".")[2] == _POSITIONS]
    sizes = [value for value in named if isinstance(value, int) and value > 0]
    return sizes[-1] if sizes else own


def _leaves(overrides: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    waiting: list[tuple[str, object]] = list(overrides.items())
    while waiting:
        key, value = waiting.pop(0)
        yield key, value
        if isinstance(value, Mapping):
            waiting += value.items()


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError as exc:
        raise ValueError(text[:60]) from exc
    if not isinstance(found, dict):
        raise ValueError(text[:60])  # noqa: TRY004  of a text, not of our own types
    return found


def _value(text: str, size: _Size) -> object:
    """Read a dotted key's value as vLLM does: JSON, a size such as 32k, or words."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return size(text)
    except InvalidArgument:
        return text


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

    def says(self, asked: str | None) -> str:
        """Tell which row was taken and why."""
        return f"vLLM {asked or 'of no given version'}: planned as {self.version}."


@functools.cache
def profiles() -> tuple[Profile, ...]:
    """Give every row, oldest first."""
    rows = tomllib.loads(_VERSIONS_FILE.read_text("utf-8"))
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
_SWITCHES: Final = {
    f"--{no}{name.replace('_', '-')}": (name, not no)
    for name in (
        "async_scheduling",
        "language_model_only",
        "disable_chunked_mm_input",
        "disable_hybrid_kv_cache_manager",
        "enforce_eager",
    )
    for no in ("", "no-")
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


def positions(model: ModelShape, flags: Flags) -> int | None:
    """Give the longest sequence that a model takes with these flags; None where nobody knows."""
    return limit(json.loads(flags.hf_overrides or "{}"), model.max_position_embeddings)


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


_VALUED: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "--max-model-len": ("max_model_len", _length),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--device-memory-utilization": ("gpu_memory_utilization", float),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--kv-cache-memory-bytes": ("kv_cache_memory_bytes", size_in_bytes),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", size_in_bytes),
    "--tensor-parallel-size": ("tensor_parallel_size", int),
    "-tp": ("tensor_parallel_size", int),
    "--quantization": ("quantization", str),
    "-q": ("quantization", str),
    "--dtype": ("dtype", str),
    "--cpu-offload-gb": ("cpu_offload_gb", float),
    "--block-size": ("block_size", int),
    "--num-gpu-blocks-override": ("num_gpu_blocks_override", int),
    "--vllm-version": ("vllm_version", str),
}
"""Flags with a value, and how vLLM reads it."""
READ: Final = frozenset({*_SWITCHES, *_VALUED})
"""Flags that change a plan."""


def engine_flags(words: Sequence[str]) -> dict[str, object]:
    """Read those of a deployment's engine_args that change how much memory it takes.

    Raises:
        InvalidArgument: A value cannot be read.
    """
    values: dict[str, object] = {}
    for position, word in enumerate(words):
        given, joined, value = word.partition("=")
        flag = given.replace("_", "-")
        if flag in _SWITCHES:
            name, switch = _SWITCHES[flag]
            if joined:
                raise _switched(flag, on=switch)
            values[name] = switch
        elif flag in _VALUED:
            following = words[position + 1] if position + 1 < len(words) else ""
            name, kind = _VALUED[flag]
            values[name] = _read(flag, value or following, kind)
    overrides = _read("--hf-overrides", words, lambda said: overrides_in(said, size_in_bytes))
    return {**values, "hf_overrides": json.dumps(overrides)} if overrides else values


def _switched(flag: str, *, on: bool) -> InvalidArgument:
    other = flag.replace("--", "--no-", 1) if on else flag.replace("--no-", "--", 1)
    return InvalidArgument(
        f"engine_args gives {flag} a value, and it takes no value.",
        fix=f"Give {flag} alone, or {other}.",
    )


def _read(flag: str, value: T, kind: Callable[[T], object]) -> object:
    try:
        return kind(value)
    except ValueError as exc:
        raise InvalidArgument(
            f"engine_args gives {flag} what is no value for it.",  # nor told: it may be a secret
            fix="Give the value after the flag, as the next word or behind `=`.",
        ) from exc


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
_GUARDED: Final = READ | {
    "--hf-overrides",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--load-format",
    "--safetensors-load-strategy",
    "--limit-mm-per-prompt",
}
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
    for flag in (flag for word in words for flag in _flags(word)):
        # argparse takes --api-k for --api-key as well.
        ours = next((name for name in _OURS if name.startswith(flag)), None)
        if ours:
            raise InvalidArgument(
                f"engine_args may not hold {flag}: {_OURS[ours]}.", fix=f"Leave {flag} out."
            )
    for word in words:
        _refuse_short(word)


def _flags(word: str) -> Iterator[str]:
    """Give the flags in a word, also where they stand in the value of another."""
    return (found.replace("_", "-") for found in _ENGINE_WORDS_FLAG.findall(word))


def _refuse_short(word: str) -> None:
    given = re.split(r"[=.]", word, maxsplit=1)[0].replace("_", "-")
    if _ATTACHED.match(word):
        given, whole = "-q", ["--quantization"]
    elif given[2:] and given.startswith("--") and given not in _GUARDED:
        whole = sorted(name for name in _GUARDED if name.startswith(given))
    else:
        return
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


class Parsers(NamedTuple):
    """The flags to add, and what is to be known of them."""

    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@functools.cache
def _rows() -> tuple[Family, tuple[Trouble, ...]]:
    rows = tomllib.loads(_PARSERS_FILE.read_text("utf-8"))
    return valid(Family, rows["gemma4"]), tuple(valid(Trouble, one) for one in rows["trouble"])


def parsers_for(model_type: str | None, version: str | None, engine_args: Sequence[str]) -> Parsers:
    """Return what is added to a command line whose engine_args choose no parser of that kind.

    Nothing is added to a vLLM of which nobody knows the version: an unknown flag ends its boot.
    """
    family, troubles = _rows()
    if not (model_type or "").startswith(family.model_types):
        return Parsers()
    given = {word.partition("=")[0].replace("_", "-") for word in engine_args}
    wanted: list[Kind] = [kind for kind, names in _NAMES.items() if not names & given]
    if not wanted:
        return Parsers()
    if version is None:
        words = " ".join(word for kind in wanted for word in getattr(family, kind))
        return Parsers(notes=(_not_added(wanted, "nobody knows which vLLM its image has", words),))
    if numbers(version) < numbers(family.since):
        why = f"vLLM {version} has none for it before {family.since}"
        return Parsers(notes=(_not_added(wanted, why),))
    flags, notes = list[str](), list[str]()
    for kind in wanted:
        found = next(_met(troubles, kind, version), None)
        if found and found.left_out:
            why = f"in vLLM {version} {found.says} ({found.sources[-1]})"
            notes.append(_not_added([kind], why))
            continue
        flags += getattr(family, kind)
        if found:
            notes.append(f"vLLM {version}: {found.says} ({found.sources[-1]}).")
    return Parsers(tuple(flags), tuple(notes))


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


def _met(troubles: Sequence[Trouble], kind: Kind, version: str) -> Iterator[Trouble]:
    for one in troubles:
        if one.of == kind and numbers(one.since) <= numbers(version) < numbers(one.until):
            yield one


def _not_added(kinds: Sequence[Kind], why: str, words: str = "") -> str:
    which = " and ".join(f"--{'tool-call' if kind == 'tools' else kind}-parser" for kind in kinds)
    missing = ", and ".join(_GIVES[kind] for kind in kinds)
    choose = f" Give them in engine_args if it has them: {words}." if words else ""
    return f"Without {which}: {why}; {missing}.{choose}"


MOST_TOKENS_OF_AN_ITEM: Final = 2496
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
    row = profile(flags.vllm_version)
    if needs_float32(model, accelerator, flags):
        flags = flags.model_copy(update={"dtype": "float32"})
    own = positions(model, flags) or model.max_position_embeddings
    length = flags.max_model_len or own or 1
    seqs, batched, why = _batches(model, accelerator, flags, length)
    util = flags.gpu_memory_utilization or row.gpu_memory_utilization
    flight = batched * _flights(row, accelerator, flags)
    ask = _kv_ask(model, accelerator, flags, length=length, in_flight=flight)
    return Resolved(
        profile=row,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=util,
        element_bytes=_element_bytes(flags.dtype or "auto"),
        tensor_parallel=flags.tensor_parallel_size,
        ask=ask._replace(tokens_logged=row.tokens_logged),
        derivation=(row.says(flags.vllm_version), *why),
    )


def refuses_fp16(model: ModelShape) -> bool:
    """Whether vLLM does not run this model in float16."""
    return model.model_type in _NO_FP16


def needs_float32(model: ModelShape, accelerator: Accelerator, flags: Flags) -> bool:
    """Whether vLLM takes float32 by itself: neither bf16 nor fp16 is possible there."""
    return not accelerator.bf16 and refuses_fp16(model) and (flags.dtype or "auto") == "auto"


def most_tokens_of_an_item(model: ModelShape, flags: Flags) -> int:
    """Tokens of the largest image or video that this model takes, 0 without a vision tower."""
    gemma4 = (model.model_type or "").startswith("gemma4")
    return (
        MOST_TOKENS_OF_AN_ITEM if gemma4 and model.vision and not flags.language_model_only else 0
    )


def _batches(
    model: ModelShape, accelerator: Accelerator, flags: Flags, length: int
) -> tuple[int, int, tuple[str, ...]]:
    seqs, batched = _defaults(accelerator, flags.tensor_parallel_size)
    seqs = flags.max_num_seqs or seqs
    if model.bidirectional_images:
        batched = max(batched, most_tokens_of_an_item(model, flags))
    batched = flags.max_num_batched_tokens or min(seqs * length, batched)
    if flags.max_num_seqs is None:
        seqs = min(seqs, batched)
    return seqs, batched, (f"max_num_seqs = {seqs}, max_num_batched_tokens = {batched}",)


def _defaults(accelerator: Accelerator, tensor_parallel: int) -> tuple[int, int]:
    if accelerator.kind == "cpu":
        return 128 * tensor_parallel, 2048 * tensor_parallel
    if accelerator.kind == "tpu":
        return 256, _TPU_BATCHED.get(accelerator.name, 2048)
    memory = accelerator.memory_gib or 0
    if memory >= 160:
        return 1024, 16_384
    if memory >= 70 and "a100" not in accelerator.device_name:
        return 1024, 8192
    return 256, 2048


def _flights(row: Profile, accelerator: Accelerator, flags: Flags) -> int:
    if accelerator.kind == "cpu":  # vLLM turns async scheduling off there.
        return 1
    if flags.async_scheduling is None:
        return row.in_flight_batches
    return 2 if flags.async_scheduling else 1


def _kv_ask(
    model: ModelShape, accelerator: Accelerator, flags: Flags, *, length: int, in_flight: int
) -> KvAsk:
    return KvAsk(
        max_model_len=length,
        in_flight_tokens=in_flight,
        block_size=flags.block_size or (128 if accelerator.kind == "cpu" else 16),
        element_bytes=kv_element_bytes(flags),
        tensor_parallel=flags.tensor_parallel_size,
        longest=max(model.max_position_embeddings or 0, length),
        hybrid=not flags.disable_hybrid_kv_cache_manager,
        blocks_override=flags.num_gpu_blocks_override,
    )


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
