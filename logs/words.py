"""Any of many words, looked for in one pass."""

import re
from collections.abc import Collection


def branches(words: Collection[str]) -> str:
    r"""Write one expression of all words, branching letter by letter; the shortest suffices.

    >>> branches(("no room", "not"))
    'no(?:\\ room|t)'
    """
    if "" in words:
        return ""
    heads: dict[str, set[str]] = {}
    for word in words:
        heads.setdefault(word[0], set()).add(word[1:])
    ways = [f"{re.escape(head)}{branches(rest)}" for head, rest in sorted(heads.items())]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
