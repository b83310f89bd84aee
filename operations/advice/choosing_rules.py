"""Rules for choosing model and target, each computed from rows of the planner's table."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from backends.registry import BACKENDS
from benchmark.records import figure, listed
from planner.advise import Goal, Offer, candidates, consider, quality_of
from planner.compare import Comparison, Row
from planner.places import Place, place
from planner.price import price

_CROWD: Final = 32
"""Users at once that share an accelerator in the rule about batches."""


def rules(found: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield what holds here, the choice of the model first."""
    served = [row for row in found.rows if row.fits and not row.unserved]
    yield from _qualities(served)
    yield from _precision(served)
    yield from _sizes(served, names)
    places_served = {row.place for row in served}
    serving = [name for name in names if name in places_served]
    yield from _provisioning(names, serving)
    yield from _batches(served, found.goal)
    yield from _sleep(serving)


def _qualities(served: Sequence[Row]) -> Iterator[str]:
    """Say what a step up in quality costs, on the place that serves most of them."""
    where = _widest(served)
    for quality, words in (
        ("small", "for classification, extraction and short answers"),
        ("medium", "where small ones answer wrongly"),
        ("large", "for reasoning, code and long documents"),
    ):
        mine = [row for row in served if row.place == where and quality_of(row.model) == quality]
        if mine:
            said = "; ".join(f"{_short(row.model)} {_speed(row)} tokens/s" for row in mine)
            yield f"Take a {quality} model {words} (on {where}: {said})."


def _precision(served: Sequence[Row]) -> Iterator[str]:
    """Say what four bits save, of the largest model that has both on one place."""
    by_key = {(row.model, row.place): row for row in served}
    for (model, where), row in reversed(by_key.items()):
        plain = model.removesuffix("-qat-w4a16-ct")
        full = by_key.get((plain, where)) if plain != model else None
        if full and row.weights_gib and full.weights_gib:
            faster = _middle(row) / _middle(full)
            yield (
                "Take the QAT (w4a16) checkpoint unless your own evaluation forbids it:"
                f" {_short(model)} takes {row.weights_gib:.1f} GiB a device against"
                f" {full.weights_gib:.1f}, and decodes about {figure(faster)} times as fast"
                f" on {where}."
            )
            return


def _sizes(served: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Say what more chips of one kind are good for."""
    sizes = sorted(
        (each for each in map(place, names) if each.provisioning == "on-demand"),
        key=lambda each: each.count,
    )
    tpus = [each for each in sizes if each.deployable_by == "tpu"]
    for small, large in pairwise(tpus):
        yield from _step(small, large, {(row.model, row.place): row for row in served})


def _step(small: Place, large: Place, rows: dict[tuple[str, str], Row]) -> Iterator[str]:
    models = dict.fromkeys(model for model, _ in rows)
    both = [
        model for model in models if (model, small.name) in rows and (model, large.name) in rows
    ]
    only = [model for model in models if (model, large.name) in rows and model not in both]
    needs = f"only it serves {listed([_short(m) for m in only])}; " if only else ""
    if not both:
        return
    model = both[-1]
    one, two = rows[model, small.name], rows[model, large.name]
    dearer = (two.usd_per_hour or 0) / (one.usd_per_hour or 1)
    worth = _token(two) / _token(one)
    yield (
        f"{large.name} against {small.name}: {needs}{_short(model)} answers each user about"
        f" {figure(_middle(two) / _middle(one))} times as fast and holds"
        f" {figure((two.requests_held or 0) / (one.requests_held or 1))} times the requests, for"
        f" {figure(dearer)} times the price of an hour and {figure(worth)} times that of tokens:"
        " take more chips for what does not fit or must be quick, and more replicas for throughput."
    )


def _provisioning(names: Sequence[str], serving: Sequence[str]) -> Iterator[str]:
    """Say what cheaper capacity that serves costs in certainty."""
    known = {name: price(place(name)).usd_per_hour for name in names}
    for name in serving:
        where = place(name)
        base = known.get(name.removesuffix(f"-{where.provisioning.partition('-')[0]}"))
        mine = known[name]
        if where.provisioning != "on-demand" and where.count == 1 and base and mine:
            limits = " ".join(where.limits)
            yield f"{name} costs {figure(mine / base)} times its on-demand price. {limits}"


def _batches(served: Sequence[Row], goal: Goal) -> Iterator[str]:
    """Say how the price of a token falls with users who share the accelerator."""
    priced = [row for row in served if row.usd_per_million_tokens and row.usd_per_hour]
    if not priced:
        return
    row = min(priced, key=_token)
    crowd = goal.model_copy(update={"model": row.model, "users": _CROWD, "max_model_len": 2048})
    (shape,) = candidates(crowd)
    offer = consider(shape, place(row.place), crowd, backends=BACKENDS)
    if isinstance(offer, Offer) and offer.cost:
        yield (
            f"Fill it: {_short(row.model)} on {row.place} costs ${row.usd_per_million_tokens} per"
            f" million tokens with {goal.users} at once and"
            f" ${offer.cost.usd_per_million_tokens} with {_CROWD} of 2,048 tokens. Set"
            " max_model_len to what you need: requests at once share the KV cache."
        )


def _sleep(names: Sequence[str]) -> Iterator[str]:
    """Say where idle hours cost nothing."""
    sleeping = [name for name in names if place(name).scale_to_zero]
    staying = [name for name in names if not place(name).scale_to_zero]
    if sleeping:
        yield (
            f"For a few hours a day: {listed(sleeping)} bill no accelerator while nobody asks;"
            " where the weights are stored is billed on."
        )
    if staying:
        yield f"{listed(staying)} bill until deleted: give ttl_minutes."


def _widest(served: Sequence[Row]) -> str | None:
    counts: dict[str, int] = {}
    for row in served:
        counts[row.place] = counts.get(row.place, 0) + 1
    return max(counts, key=lambda name: counts[name], default=None)


def _middle(row: Row) -> float:
    return row.tokens_per_second_per_user.middle if row.tokens_per_second_per_user else 1.0


def _speed(row: Row) -> str:
    return str(row.tokens_per_second_per_user)


def _token(row: Row) -> float:
    return row.usd_per_million_tokens.middle if row.usd_per_million_tokens else float("inf")


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1].removeprefix("gemma-4-")
