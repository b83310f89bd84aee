"""What is set of a deployment besides its engine: replicas, end, callers, weights."""

from collections.abc import Iterator
from typing import Final, Literal

from operations.explaining.case import Case, at_once, usd
from operations.explaining.records import FlagRow
from operations.lives.ending import comes_back

_ACCESS: Final = {
    "private": "Whoever calls shows the engine's key, and what the cloud asks of its own users.",
    "public": "Whoever has the engine's key may call, from anywhere.",
    "internal": "Only the cloud's own network reaches it, and the engine's key is asked for.",
}
_ON_A_SOCKET: Final = "It listens on a unix socket that only its owner reaches, and on no port."
_OTHERS: Final = {
    "image": ("image", "The engine's image in place of the target's own."),
    "network": ("network", "The network that a replica is attached to."),
    "zones": ("zones", "Where a chip is looked for, in this order."),
    "control_plane": ("control_plane", "Who is asked for the chip."),
    "engine": ("engine", "What serves the model."),
    "port": ("port", "Where it listens."),
    "env": ("env", "Variables of the engine's environment."),
    "cpu": ("cpu", "vCPUs of a replica."),
    "memory_gib": ("memory_gib", "GiB of a replica's memory."),
    "launch_stage": ("launch_stage", "The stage of Cloud Run's API that is asked."),
    "build_machine": ("build_machine", "What builds the image."),
    "boot_disk_gb": ("boot_disk_gb", "The VM's disk."),
    "zone_wait_minutes": ("zone_wait_minutes", "How long each zone is waited for."),
}


def running_rows(case: Case) -> Iterator[FlagRow]:
    """Give the rows of replicas, end, callers and weights, and of what else was said."""
    yield _least(case)
    yield _most(case)
    yield _end(case)
    yield _access(case)
    yield _weights(case)
    plain = type(case.spec)(name=case.spec.name, model=case.spec.model)
    for field, (flag, does) in _OTHERS.items():
        said = getattr(case.spec, field)
        if said != getattr(plain, field):
            value = ", ".join(said) if isinstance(said, tuple) else str(said)
            yield FlagRow(
                flag=flag,
                value=value,
                default="the target's own",
                differs=True,
                does=does,
                trades="What is tried here against what you know.",
            )


def cold_start(case: Case) -> str:
    """Say how long the first request after an idle time waits."""
    boot = case.boot()
    return f"{boot.seconds} s" if boot else "nobody can say how long"


def idle_cost(case: Case, replicas: int) -> str:
    """Say what so many replicas cost while nobody asks."""
    hourly, month = case.usd_per_hour, case.month(replicas)
    if not replicas:
        return "nothing"
    if case.place.provider == "own":
        return "nothing, the machine being your own"
    if hourly is None or month is None:
        return "a price that nobody has said"
    return f"{usd(hourly * replicas)}/h, {usd(month)} a month"


def asleep_cost(case: Case) -> str:
    """Say what one that may sleep costs while nobody asks."""
    hourly, stays = case.usd_per_hour, case.stays_seconds
    if stays is None:
        awake = f", and {usd(hourly)}/h until then" if hourly is not None else ""
        return f"nothing once it sleeps{awake}"
    each = f", {usd(hourly * stays / 3600)} each time" if hourly is not None else ""
    return f"nothing once {stays / 60:.0f} min after the last request are over{each}"


def resting_cost(case: Case) -> str:
    """Say what it costs while nobody asks, as it is deployed."""
    least = case.spec.min_replicas
    return idle_cost(case, least) if least else asleep_cost(case)


def ended(case: Case) -> Literal["stopped", "destroyed"]:
    """Say how its bill is ended for certain; of TPUs only Cloud TPU's queue can stop some."""
    stops = case.device.kind != "tpu" or comes_back(case.spec, case.place)
    return "stopped" if stops else "destroyed"


def _least(case: Case) -> FlagRow:
    least, sleeps = case.spec.min_replicas, case.place.scale_to_zero
    return FlagRow(
        flag="min_replicas",
        value=str(least),
        default="0" if sleeps else "1",
        differs=least != (0 if sleeps else 1),
        does=_idle(case),
        trades=_sleep_trade(case, least)
        if sleeps
        else f"There is no scaling to zero: it runs until it is {ended(case)}"
        + ("." if case.place.provider == "own" else ", and is billed for it."),
    )


def _idle(case: Case) -> str:
    if case.spec.min_replicas == 0:
        then = f"the first request then waits {cold_start(case)} for a boot"
    else:
        then = "nobody waits for a boot"
    return f"Idle it costs {resting_cost(case)}; {then}."


def _sleep_trade(case: Case, least: int) -> str:
    if least == 0:
        kept = idle_cost(case, 1)
        return f"Money against the first answer: min_replicas=1 spares the cold start for {kept}."
    return (
        f"The first answer against money: min_replicas=0 costs {asleep_cost(case)}; the first"
        f" answer then waits for a cold start of {cold_start(case)}."
    )


def _most(case: Case) -> FlagRow:
    most, plan = case.spec.max_replicas, case.memory
    costs = f"Costs at most {idle_cost(case, most)} with all of them." if case.usd_per_hour else ""
    each = f" Each holds {at_once(plan)} requests of full length." if plan else ""
    return FlagRow(
        flag="max_replicas",
        value=str(most),
        default="1",
        differs=most != 1,
        does=f"{costs}{each}".strip() or "At most so many run.",
        trades="Money and quota against requests at once; a new one boots while others wait.",
    )


def _end(case: Case) -> FlagRow:
    minutes = case.spec.ttl_minutes
    hourly = case.usd_per_hour
    if not minutes:
        does = "Nothing ends it by itself."
    else:
        most = f", at most {usd(hourly * minutes / 60)} for each replica" if hourly else ""
        does = f"It is ended {minutes:,} minutes after it was made{most}."
    return FlagRow(
        flag="ttl_minutes",
        value=str(minutes) if minutes is not None else "none",
        default="none",
        differs=minutes is not None,
        does=does,
        trades="A forgotten one stops by itself, and so does one that is still needed.",
    )


def _access(case: Case) -> FlagRow:
    return FlagRow(
        flag="access",
        value=case.spec.access,
        default="private",
        differs=case.spec.access != "private",
        does=_reached(case),
        trades="Who can reach it against how easily.",
    )


def _reached(case: Case) -> str:
    if case.place.provider != "own":
        return _ACCESS[case.spec.access]
    return _ON_A_SOCKET if case.spec.access == "internal" else case.place.network


def _weights(case: Case) -> FlagRow:
    boot = case.boot()
    loading = next((one for one in boot.phases if one.name == "weights"), None) if boot else None
    does = f"A boot reads them in {loading.seconds} s." if loading else ""
    return FlagRow(
        flag="weights",
        value=case.spec.weights or case.weights_from,
        default="the Hub, or this machine's folder",
        differs=case.spec.weights not in {None, "hub"},
        does=does or "How long reading them takes, nobody can say here.",
        trades=_faster(case) or "Work beforehand against a shorter boot.",
    )


def _faster(case: Case) -> str:
    """Say what other places for the weights would do to a boot on this provider."""
    other = {"google": ("gcs-streamed", "gcs-fuse", "hub"), "azure": ("azure-files", "hub")}
    places = [one for one in other.get(case.place.provider, ()) if one != case.weights_from]
    if not case.place.scale_to_zero:
        return ""
    found = [(one, case.boot(weights_from=one)) for one in places]
    told = "; ".join(f"from {one} {boot.seconds} s in all" for one, boot in found if boot)
    return f"Work beforehand against a shorter boot: {told}." if told else ""
