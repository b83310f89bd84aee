"""What a TPU costs: by the hour as it is priced, and so far as its VM is known to have run."""

from datetime import datetime

from backends.tpu.chip import Chip
from backends.tpu.site import Site
from planner.price import price


def usd_per_hour(site: Site, chip: Chip | None = None) -> float | None:
    """Give the price of one VM of the target, where it is; None where nobody has said."""
    if site.target.usd_per_hour is not None:
        return site.target.usd_per_hour
    hourly = price(site.offered, zones=[chip.place.zone] if chip else ()).usd_per_hour
    return None if hourly is None else round(hourly, 4)


def usd_so_far(site: Site, chip: Chip | None, until: datetime) -> float | None:
    """Give what it cost since it was given its chip, None where that moment is not known.

    A request that waits costs nothing.
    """
    hourly = usd_per_hour(site, chip)
    if chip is None or chip.given_at is None or hourly is None:
        return None
    seconds = max(0.0, (until - chip.given_at).total_seconds())
    return round(seconds / 3600 * hourly, 4)


def at_a_price(site: Site, chip: Chip | None) -> str:
    """Say what goes on to be paid, as the end of a sentence."""
    hourly = usd_per_hour(site, chip)
    return "at a price nobody knows" if hourly is None else f"at ${hourly:.2f} an hour"
