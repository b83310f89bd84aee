"""What somebody wants to serve, and which models would do."""

import functools
from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from core.errors import InvalidArgument
from core.records import ModelShape, Record
from planner.catalog import entries, find
from planner.layouts import SHORTEST, Layout, Wish
from planner.model import read_model
from planner.price import HOURS_PER_MONTH, Load

Quality = Literal["small", "medium", "large"]

_QUALITY: Final[dict[Quality, tuple[str, ...]]] = {
    "small": ("E2B", "E4B"),
    "medium": ("12B",),
    "large": ("26B", "31B"),
}
"""Sizes of the catalog, by how well they answer: parameters that a token passes, and in all."""


class Goal(Record):
    """What is wanted; what is left out does not matter."""

    model: str | None = None
    """A Hub id, a short name such as `12b qat`, or a folder; else `quality` chooses."""
    quality: Quality | None = None
    max_model_len: int = Field(default=8192, ge=SHORTEST)
    """Tokens of the longest prompt and its answer together."""
    users: int = Field(default=1, ge=1)
    """Requests of that length that must be held at once."""
    tokens_per_second_per_user: float | None = Field(default=None, gt=0)
    usd_per_hour: float | None = Field(default=None, gt=0)
    """The most that one replica may cost."""
    usd_per_month: float | None = Field(default=None, gt=0)
    hours_per_month: float = Field(default=HOURS_PER_MONTH, gt=0, le=HOURS_PER_MONTH + 14)
    """In which it runs; 730 is always."""
    scale_to_zero: bool = False
    """It must cost nothing while nobody asks, and wake by itself."""
    layout: Layout | None = None
    """What the flags are tuned for; left out, the plainest that do."""
    text_only: bool = False
    """No images and no sound."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Of a usual request; left out, half the length, at most 1,024."""
    output_tokens: int | None = Field(default=None, ge=1)
    """Left out, a quarter of the length, at most 256."""
    places: tuple[str, ...] = ()
    """Only these; left out, every place."""
    vllm_version: str | None = None

    @property
    def wish(self) -> Wish:
        """What the flags must make possible."""
        return Wish(
            max_model_len=self.max_model_len,
            requests=self.users,
            layout=self.layout,
            text_only=self.text_only,
            usual_tokens=self.load.prompt_tokens + self.load.output_tokens,
            vllm_version=self.vllm_version,
        )

    @property
    def load(self) -> Load:
        """The usual request, from every user at once."""
        return Load(
            prompt_tokens=self.prompt_tokens or min(1024, self.max_model_len // 2),
            output_tokens=self.output_tokens or min(256, self.max_model_len // 4),
            concurrency=self.users,
        )

    @property
    def duty(self) -> float:
        """The share of a month in which it runs."""
        return self.hours_per_month / HOURS_PER_MONTH


def candidates(goal: Goal) -> tuple[ModelShape, ...]:
    """Give the models that the goal allows.

    Raises:
        InvalidArgument: It names neither a model nor a quality, or a model nobody knows.
    """
    if goal.model:
        entry = find(goal.model)
        shape = _shape(entry.model) if entry else read_model(goal.model)
        if not (shape.layers and shape.groups):
            raise InvalidArgument(
                f"{goal.model} cannot be planned.",
                fix="Give a model of the catalog (list_models), or a folder with its files.",
                cause=" ".join(shape.unknown),
            )
        return (shape,)
    if goal.quality is None:
        raise InvalidArgument("Which model?", fix="Give a model, or quality=small|medium|large.")
    return tuple(_of_quality(goal.quality))


def quality_of(model: str) -> Quality | None:
    """Give the quality that a model of the catalog stands for, None for another's."""
    for quality, sizes in _QUALITY.items():
        if any(f"-{size}-" in model for size in sizes):
            return quality
    return None


def siblings(model: ModelShape) -> Iterator[ModelShape]:
    """Give the other models of the catalog, those with the most parameters first."""
    others = (_shape(one.model) for one in entries() if one.model != model.model and not one.absent)
    yield from sorted(others, key=lambda shape: (-shape.parameters, -(shape.weight_bytes or 0)))


def _of_quality(quality: Quality) -> Iterator[ModelShape]:
    for entry in entries():
        if not entry.absent and any(f"-{size}-" in entry.model for size in _QUALITY[quality]):
            yield _shape(entry.model)


@functools.cache
def _shape(model: str) -> ModelShape:
    return read_model(model)
