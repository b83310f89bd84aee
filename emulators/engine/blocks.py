"""KV-cache blocks: who holds them, which of them still know a prefix."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile


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
