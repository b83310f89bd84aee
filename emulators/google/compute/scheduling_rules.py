"""How an instance may be scheduled: provisioning model, what ends it, what follows from both.

Sources: public reports of 2025-11 (the termination action of standard instances), 2026-07 and
2026-08 (flex-start), of 2018 on (no live migration with accelerators), and Google's pages on
limiting the run time; the words of a rule that no report quotes are made up here.
"""

from typing import Any, Final

from emulators.google.compute.catalog import MachineType
from emulators.google.compute.refusing import bad, wrong

_AT: Final = "resource.scheduling"
_DAY_SECONDS: Final = 86_400
_RUN_SECONDS: Final = (30, 120 * _DAY_SECONDS)
_FLEX_RUN_SECONDS: Final = (600, 7 * _DAY_SECONDS)
_FLEX_USUAL_SECONDS: Final = _DAY_SECONDS
_FLEX_WAIT_SECONDS: Final = (90, 7200)
_ACTION: Final = (
    "You cannot specify a termination action for a VM instance that has the standard provisioning"
    " model (default). To use instance termination action, the VM instance must use the Spot,"
    " Reservation-Bound or Flex Start provisioning model."
)


def seconds(duration: Any) -> int:
    """Give the whole seconds of a google.protobuf.Duration as Compute Engine writes it."""
    return int((duration or {}).get("seconds", "0"))


def scheduled(body: dict[str, Any], kind: MachineType) -> dict[str, Any]:
    """Give the scheduling of an instance with what follows from it.

    Raises:
        Denied: Something in it cannot be, or not together.
    """
    said = dict(body.get("scheduling") or {})
    model = said.setdefault("provisioningModel", "SPOT" if said.get("preemptible") else "STANDARD")
    if model == "RESERVATION_BOUND":
        raise wrong(f"{_AT}.provisioningModel", model, "There is no reservation of that kind.")
    _restart(said, model)
    _maintenance(said, model, kind)
    _end(said, model)
    _wait(body, model)
    if model == "FLEX_START":
        _flex(body, said)
    return said


def _restart(said: dict[str, Any], model: str) -> None:
    standard = model == "STANDARD"
    if said.setdefault("automaticRestart", standard) and not standard:
        raise wrong(
            f"{_AT}.automaticRestart",
            said["automaticRestart"],
            f"Automatic restart must be false for the provisioning model {model}.",
        )
    if said.setdefault("preemptible", model == "SPOT") and model != "SPOT":
        raise wrong(f"{_AT}.preemptible", "true", "Preemptible instances are of the model SPOT.")


def _maintenance(said: dict[str, Any], model: str, kind: MachineType) -> None:
    usual = "TERMINATE" if model == "SPOT" else "MIGRATE"
    if said.setdefault("onHostMaintenance", usual) == "TERMINATE":
        return
    if kind.chips:
        raise bad("Instances with guest accelerators do not support live migration.")
    if model == "SPOT":
        raise bad("Scheduling must have onHostMaintenance be TERMINATE when preemptible is true.")


def _end(said: dict[str, Any], model: str) -> None:
    """Check what ends it, and when."""
    limited = "maxRunDuration" in said or "terminationTime" in said
    if "maxRunDuration" in said and "terminationTime" in said:
        raise bad("maxRunDuration and terminationTime are mutually exclusive.")
    action = said.get("instanceTerminationAction")
    if action and model == "STANDARD" and not limited:
        raise wrong(f"{_AT}.instanceTerminationAction", action, _ACTION)
    if "maxRunDuration" in said:
        shortest, longest = _FLEX_RUN_SECONDS if model == "FLEX_START" else _RUN_SECONDS
        if not shortest <= seconds(said["maxRunDuration"]) <= longest:
            raise wrong(
                f"{_AT}.maxRunDuration",
                said["maxRunDuration"],
                f"Must be between {shortest} and {longest} seconds.",
            )
    if (limited or model == "SPOT") and model != "FLEX_START":
        said.setdefault("instanceTerminationAction", "STOP")


def _wait(body: dict[str, Any], model: str) -> None:
    params = body.get("params") or {}
    waited = params.get("requestValidForDuration")
    if waited is None:
        return
    field, (shortest, longest) = "resource.params.requestValidForDuration", _FLEX_WAIT_SECONDS
    if model != "FLEX_START":
        raise wrong(field, waited, "Only instances of the model FLEX_START wait for capacity.")
    if seconds(waited) and not shortest <= seconds(waited) <= longest:
        raise wrong(field, waited, f"Must be 0, or between {shortest} and {longest} seconds.")


def _flex(body: dict[str, Any], said: dict[str, Any]) -> None:
    if said.get("instanceTerminationAction") not in {"STOP", "DELETE"}:
        raise wrong(
            f"{_AT}.instanceTerminationAction",
            said.get("instanceTerminationAction", ""),
            "It must be set for the provisioning model FLEX_START.",
        )
    affinity = (body.get("reservationAffinity") or {}).get("consumeReservationType")
    if affinity != "NO_RESERVATION":
        raise wrong(
            "resource.reservationAffinity.consumeReservationType",
            affinity or "",
            "It must be NO_RESERVATION for the provisioning model FLEX_START.",
        )
    if "terminationTime" not in said:
        said.setdefault("maxRunDuration", {"seconds": str(_FLEX_USUAL_SECONDS)})
