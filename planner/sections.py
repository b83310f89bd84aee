"""An object of somebody's JSON: what makes no sense in it is passed over, and said."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Json = Mapping[str, Any]

MOST: Final = 10**12
"""Nothing in a model is counted in more."""
_LONGEST_WORD: Final = 1000
_LONGEST_SHOWN: Final = 200


class Section:
    """An object of a config.json. None and false stand for what is left out."""

    def __init__(self, values: Any, name: str, unknown: list[str]) -> None:
        self.values: Json = values if isinstance(values, Mapping) else {}
        self.unknown = unknown
        """What could not be read, in sentences; shared by all sections of a config."""
        self._name = name
        if not isinstance(values, Mapping):
            self._say(f"{name} is no JSON object")

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.values)

    def number(self, *names: str, default: int = 0, least: int = 0, most: int = MOST) -> int:
        """Give the first of several names that holds a whole number."""
        for name in names:
            value = self.values.get(name)
            if value is None or value is False:
                continue
            if is_whole(value, least=least, most=most):
                return int(value)
            self._say(f"{self._of(name)} is no number that makes sense")
        return default

    def numbers(self, name: str, count: int) -> tuple[int, ...] | None:
        """Give a list of so many numbers, none of them 0; None where it is left out."""
        value = self.values.get(name)
        if not value:
            return None
        if (
            isinstance(value, list)
            and [is_whole(each, least=1) for each in value] == [True] * count
        ):
            return tuple(int(each) for each in value)
        self._say(f"{self._of(name)} is no list of {count} numbers that make sense")
        return None

    def word(self, name: str) -> str | None:
        """Give a word, None where it is left out."""
        value = self.values.get(name)
        if not value or is_word(value):
            return value or None
        self._say(f"{self._of(name)} is no word")
        return None

    def words(self, name: str) -> tuple[str, ...]:
        """Give a list of words, all of them or none."""
        value = self.values.get(name)
        if not value:
            return ()
        if isinstance(value, list) and all(is_word(each) for each in value):
            return tuple(value)
        self._say(f"{self._of(name)} is no list of words")
        return ()

    def on(self, name: str, *, default: bool = False) -> bool:
        """Give a switch; the default is for a name that is not there at all."""
        value = self.values.get(name, default)
        if value is None or (isinstance(value, int) and value in {0, 1}):
            return bool(value)
        self._say(f"{self._of(name)} is neither true nor false")
        return default

    def section(self, name: str) -> "Section":
        """Give an object inside, an empty one where it is left out."""
        value = self.values.get(name)
        return Section({} if value is None else value, shown(name), self.unknown)

    def sections(self) -> Iterator["Section"]:
        """Give every object inside."""
        return (self.section(name) for name in self.values)

    def _of(self, name: str) -> str:
        return f"{name} of {self._name}"

    def _say(self, what: str) -> None:
        sentence = f"{what}: it was passed over."
        if sentence not in self.unknown:
            self.unknown.append(sentence)


def is_whole(value: Any, *, least: int = 0, most: int = MOST) -> bool:
    """Whether it is a whole number within bounds, as 4096.0 is."""
    whole = value.is_integer() if isinstance(value, float) else type(value) is int
    return whole and least <= value <= most


def is_word(value: Any) -> bool:
    """Whether it is text of a length that somebody may have meant, and can be written."""
    return isinstance(value, str) and len(value) <= _LONGEST_WORD and is_unicode(value)


def shown(text: str) -> str:
    """Write text of any length and any bytes so that it can stand in a sentence."""
    short = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return short.encode("utf-8", "backslashreplace").decode("utf-8")


def is_unicode(text: str) -> bool:
    """Whether text can be written down."""
    # JSON can hold half a surrogate pair, and a name on disk bytes that are no text.
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
