"""What a plan warns of that costs money, wherever it runs."""

from collections.abc import Iterator

from planner.price import HOURS_PER_MONTH, Price


def price_doubts(costs: Price) -> Iterator[str]:
    """Say how sure the price is, if it is not."""
    if costs.usd_per_hour is None:
        yield "What it costs is not known."
    elif costs.disagree:
        yield f"Sources disagree on the price: {costs.short}."
    elif len(costs.quotes) == 1:
        yield f"One source alone names the price: {costs}."


def always_on(replicas: int, costs: Price, *, called: str) -> str:
    """Say what replicas that never sleep cost; `called` as their cloud calls them."""
    if costs.usd_per_hour is None:
        return f"{replicas} {called} run all the time, asked or not, at a price nobody knows."
    monthly = replicas * costs.usd_per_hour * HOURS_PER_MONTH
    return (
        f"min_replicas={replicas} runs all the time, asked or not: ${monthly:,.0f} a month;"
        " 0 costs nothing while nobody asks."
    )


def tagged(image: str) -> Iterator[str]:
    """Say what an image without a digest may become."""
    if "@sha256:" not in image:
        yield (
            f"{image} is named by a tag, which may come to mean another image; it"
            " is pinned by its digest when it is deployed, if its registry can be asked."
        )
