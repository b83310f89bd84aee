"""Continuous batching as a discrete-event model: KV-cache blocks and how long a step takes."""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from core.records import ModelShape
from planner.flags import Flags
from planner.places import Accelerator
from planner.speed import Work, decode, share


def prefix_hashes(tokens: Sequence[int], block_size: int, known: Sequence[int] = ()) -> list[int]:
    """One hash per full block, each over everything before it as well; `known` is not redone.

    >>> a, b = prefix_hashes([1, 2, 3, 4, 5], 2), prefix_hashes([1, 2, 9, 9], 2)
    >>> len(a), a[0] == b[0], a[1] == b[1]
    (2, True, False)
    """
    hashes = list(known)
    for index in range(len(hashes), len(tokens) // block_size):
        block = tuple(tokens[index * block_size : (index + 1) * block_size])
        hashes.append(hash((hashes[-1] if hashes else 0, block)))
    return hashes


class BlockPool:
    """A fixed number of blocks; free ones keep their content until somebody needs the room."""

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._caching = caching
        self._holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash: dict[int, int] = {}
        self._by_hash: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody holds."""
        return 1 - self.num_free / self.num_blocks if self.num_blocks else 0.0

    def find(self, hashes: Iterable[int]) -> list[int]:
        """The blocks of the longest known prefix; nobody holds them more than before."""
        found = (self._by_hash.get(value) for value in hashes)
        return [block for block in takewhile(lambda b: b is not None, found) if block is not None]

    def fits(self, held: Sequence[int], new: int) -> bool:
        """Whether `new` more blocks are left once these cached ones are held."""
        return new <= self.num_free - sum(block in self._free for block in held)

    def hold(self, blocks: Iterable[int]) -> None:
        """Share cached blocks, which then cannot be evicted."""
        for block in blocks:
            self._holders[block] += 1
            self._free.pop(block, None)

    def allocate(self, count: int) -> list[int] | None:
        """Fresh blocks, those unused for longest first; None when too few are free."""
        if count > self.num_free:
            return None
        return [self._evict() for _ in range(count)]

    def _evict(self) -> int:
        block, _ = self._free.popitem(last=False)
        value = self._hash.pop(block, None)
        if value is not None:
            del self._by_hash[value]
        self._holders[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks back, last first, so that the start of a prefix survives longest."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None

    def remember(self, block: int, value: int) -> None:
        """This block now holds that prefix; the first block to say so keeps the name."""
        if self._caching and block not in self._hash and value not in self._by_hash:
            self._hash[block] = value
            self._by_hash[value] = block


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The flags that shape a batch."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One sequence of tokens on its way through the engine."""

    prompt: Sequence[int]
    max_tokens: int
    tokens: list[int] = field(init=False)
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    cached: int | None = None
    """Prompt tokens found in the prefix cache when it was first admitted."""
    finished: bool = False
    arrived_at: float = math.nan
    """On the engine's clock, like the other times."""
    admitted_at: float = math.nan
    first_token_at: float = math.nan
    last_token_at: float = math.nan

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)


@dataclass(frozen=True, slots=True)
class Chunk:
    """So many tokens of one request in one step."""

    request: Request
    tokens: int

    @property
    def is_decode(self) -> bool:
        return self.request.generated > 0 and self.tokens == 1


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Request, ...]

    @property
    def decode_tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks if chunk.is_decode)

    @property
    def prefill_tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks if not chunk.is_decode)

    @property
    def context_tokens(self) -> int:
        """Tokens whose keys and values the step reads."""
        return sum(chunk.request.computed + chunk.tokens for chunk in self.chunks)


class Scheduler:
    """Who runs next, and on which blocks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, caching=limits.prefix_caching)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request; one that could never fit is refused."""
        if self._blocks_for(len(request.prompt) + request.max_tokens) > self.limits.num_blocks:
            raise ValueError("The request needs more KV-cache blocks than there are.")
        self.waiting.append(request)

    def plan(self) -> Batch:
        """Choose the next step and reserve its blocks."""
        chunks: list[Chunk] = []
        before = self.preemptions
        left = self._continue_running(chunks, self.limits.max_num_batched_tokens)
        admitted = self._admit(chunks, left) if self.preemptions == before else []
        return Batch(tuple(chunks), tuple(admitted))

    def commit(self, batch: Batch) -> list[Request]:
        """The step is done: who of it now has everything computed and gets a token."""
        ready = []
        for chunk in batch.chunks:
            request = chunk.request
            if request.finished:
                continue
            before, size = request.computed, self.limits.block_size
            request.computed += chunk.tokens
            if hashes := self._hashes(request):
                for index in range(before // size, request.computed // size):
                    self.pool.remember(request.blocks[index], hashes[index])
            if request.computed == len(request.tokens):
                ready.append(request)
        return ready

    def finish(self, request: Request) -> None:
        """Take a request out, done or aborted, and free its blocks."""
        if request.finished:
            return
        request.finished = True
        (self.running if request in self.running else self.waiting).remove(request)
        self.pool.release(request.blocks)
        request.blocks = []

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _hashes(self, request: Request) -> Sequence[int]:
        """Return the hash of each full block of a request; none where prefixes are not cached."""
        if self.limits.prefix_caching:
            size = self.limits.block_size
            request.hashes = prefix_hashes(request.tokens, size, request.hashes)
        return request.hashes

    def _continue_running(self, chunks: list[Chunk], budget: int) -> int:
        """Give running requests their tokens; return what is left of the budget."""
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(len(request.tokens) - request.computed, budget)
            needed = max(0, self._blocks_for(request.computed + tokens) - len(request.blocks))
            while request in self.running and (new := self.pool.allocate(needed)) is None:
                self._preempt_youngest()
            if request not in self.running or new is None:
                break
            request.blocks += new
            chunks.append(Chunk(request, tokens))
            budget -= tokens
            index += 1
        return budget

    def _preempt_youngest(self) -> None:
        request = self.running.pop()
        self.pool.release(request.blocks)
        request.blocks, request.computed = [], 0
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, chunks: list[Chunk], budget: int) -> list[Request]:
        admitted: list[Request] = []
        while self.waiting and len(self.running) < self.limits.max_num_seqs and budget > 0:
            request = self.waiting[0]
            tokens = self._start(request, budget)
            if not tokens:
                break
            self.running.append(self.waiting.popleft())
            admitted.append(request)
            chunks.append(Chunk(request, tokens))
            budget -= tokens
        return admitted

    def _start(self, request: Request, budget: int) -> int:
        """Give a waiting request its first blocks; 0 and no change when it must wait."""
        size = self.limits.block_size
        # The last token is always computed: without it there would be nothing to sample from.
        hits = self.pool.find(self._hashes(request)[: (len(request.tokens) - 1) // size])
        known = len(hits) * size
        tokens = min(len(request.tokens) - known, budget)
        new = self._blocks_for(known + tokens) - len(hits)
        if not self.pool.fits(hits, new):
            return 0
        self.pool.hold(hits)
        request.blocks = hits + (self.pool.allocate(new) or [])
        request.computed = known
        if request.cached is None:
            request.cached = known
            if self.limits.prefix_caching:
                self.prefix_queries += len(request.tokens)
                self.prefix_hits += known
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How long a step takes on what the planner foresees, or as fixed."""

    work: tuple[ModelShape, Accelerator, Flags] | None
    """A model on `tensor_parallel_size` accelerators of one kind; None has no speed of its own."""
    time_scale: float = 1.0
    """Wall-clock seconds for each simulated one."""
    fixed_step_seconds: float | None = None

    def step_seconds(self, batch: Batch) -> float:
        """Return the planner's decode step, or computing the prompts, whichever takes longer."""
        if self.fixed_step_seconds is not None:
            return self.fixed_step_seconds
        if not self.time_scale:
            return 0.0
        if self.work is None:
            read = _STEP_SECONDS + _TOKEN_SECONDS * batch.decode_tokens
            return self.time_scale * max(read, batch.prefill_tokens * _PREFILL_SECONDS)
        return self.time_scale * max(self._reading(batch), self._computing(batch))

    def _reading(self, batch: Batch) -> float:
        assert self.work
        requests = max(1, len(batch.chunks))
        context = batch.context_tokens // requests
        step = decode(*self.work, concurrency=requests, context=context)
        return requests / step.tokens_per_second.middle

    def _computing(self, batch: Batch) -> float:
        assert self.work
        work = Work(*self.work)
        flops = sum(
            # Half of the chunk's own tokens stand before the average one.
            chunk.tokens
            * work.flops_per_token(chunk.request.computed + chunk.tokens // 2, output=False)
            for chunk in batch.chunks
            if not chunk.is_decode
        )
        reached = share("prefill" if work.devices == 1 else "prefill_parallel")
        peak = (work.tflops or 1) * 1e12
        return flops / (peak * math.sqrt(reached.low * reached.high))


_STEP_SECONDS: Final = 0.035
"""An int4 model of 4B on an L4, roughly: of an engine that stands for no accelerator."""
_TOKEN_SECONDS: Final = 0.00002
_PREFILL_SECONDS: Final = 1 / 3000
