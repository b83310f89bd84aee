"""The beginning of every answer about one deployment."""

from core.records import Answer


class Located(Answer):
    """An answer about one deployment."""

    target: str
    name: str
