"""Runs of a benchmark: wished for, agreed to and begun."""

import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio

from backends.base import Predicts, RemembersSpec
from benchmark.folder import RunFolder, beginning
from benchmark.records import Provenance, RunPlan
from benchmark.server import Seen
from core.environment import ROOT, inherited_environment
from core.errors import InvalidArgument, Unsupported, WaitedTooLong
from core.processes import detach
from core.records import Access, Deployment
from core.redaction import redact
from core.waiting import wait_until
from operations.agreement import Preview, preview
from operations.ask import require_ready
from operations.benchmarks import keep_credential_fresh
from operations.evidence import file_of, folder_of, folder_of_runs, require_idle
from operations.resolve import Found, find
from operations.runtime import Runtime

_SEARCHED_CELLS: Final = 24
"""Of one search for a capacity: a dozen doublings, and halvings as many."""


def with_end(plan: RunPlan, deployment: Deployment) -> RunPlan:
    """Give a plan that ends: where it may cost something, at the latest when it was foreseen to.

    Raises:
        InvalidArgument: It must stop at a cost, and nobody knows the price.
    """
    price = usd_per_hour(deployment)
    if plan.max_cost_usd is not None and price is None:
        raise InvalidArgument(
            "A run cannot stop at a cost where no price is known.", fix="Give max_minutes instead."
        )
    if price == 0 or plan.max_minutes is not None or plan.max_cost_usd is not None:
        return plan
    each = _SEARCHED_CELLS if plan.profile == "find-capacity" else len(plan.loads)
    seconds = plan.stop.warmup_max_seconds + 2 * plan.stop.max_seconds
    minutes = float(-(-len(plan.contexts) * each * seconds // 60))
    return plan.model_copy(update={"max_minutes": minutes})


def spent_minutes(folder: RunFolder, plan: RunPlan) -> float:
    """Give the minutes that a run has taken so far.

    Raises:
        InvalidArgument: That was its whole budget.
    """
    from benchmark.run import Accounts

    manifest = folder.manifest().model_copy(update={"plan": plan})
    accounts = Accounts(manifest, folder.cells())
    if said := accounts.over_budget():
        raise InvalidArgument(
            said, fix="Give a greater max_minutes or max_cost_usd together with resume."
        )
    return accounts.elapsed_seconds / 60


def most_minutes(plan: RunPlan, price: float | None) -> float:
    """Give the minutes after which a plan that has an end ends."""
    by_cost = 60 * plan.max_cost_usd / price if plan.max_cost_usd and price else float("inf")
    return min(by_cost, plan.max_minutes or float("inf"))


async def provenance(runtime: Runtime, found: Found) -> Provenance:
    """Gather spec, plan, hardware and price of a deployment; no secret is in it."""
    backend, deployment = found
    spec = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    known = backend.hardware_known() if isinstance(backend, Predicts) else None
    named = (backend.target.accelerator, backend.target.accelerator_count or None)
    accelerator, count = (known[0].name, known[1]) if known else named
    return Provenance(
        target=deployment.target,
        deployment=found.name,
        deployment_spec=redact(spec.model_dump(exclude_none=True), runtime.secrets)
        if spec
        else None,
        revision=deployment.revision,
        accelerator=accelerator,
        accelerator_count=count,
        usd_per_hour=usd_per_hour(deployment),
        price_source=f"the price of the target {deployment.target}",
    )


def usd_per_hour(deployment: Deployment) -> float | None:
    """Give the price of all its replicas together."""
    if deployment.usd_per_hour is None:
        return None
    return deployment.usd_per_hour * max(1, deployment.replicas)


_LIMITS: Final = ("ttft", "tpot", "e2el")
_BUDGET: Final = ("max_cost_usd", "max_minutes")
_NOT_SAID: Final = {"profile": "quick", "arrivals": "poisson"}
"""What a call says that says nothing."""


class Wish(NamedTuple):
    """What is to be measured, and how."""

    found: Found
    plan: RunPlan
    folder: RunFolder | None = None
    """The run to go on with."""


async def wish(
    runtime: Runtime,
    said: Mapping[str, Any],
    *,
    target: str | None = None,
    name: str | None = None,
) -> Wish:
    """Read what a call wants measured.

    Raises:
        InvalidArgument: It cannot be measured so.
        NotReady: The deployment does not answer.
        Busy: It is being measured already.
    """
    found = await find(runtime.stage, target, name)
    plan = await anyio.to_thread.run_sync(plan_of, said)
    require_ready(found)
    require_idle(runtime, found)
    return Wish(found, with_end(plan, found.deployment))


async def wish_to_resume(runtime: Runtime, run: str, said: Mapping[str, Any]) -> Wish:
    """Read how a run that was interrupted or stopped is to go on.

    Raises:
        NotFound: There is no such run.
        InvalidArgument: Its plan would be another one, or its budget is used up.
        NotReady: The deployment does not answer.
        Busy: It is being measured already.
    """
    folder = folder_of(runtime, run)
    manifest = folder.manifest()
    budget = {name: said[name] for name in _BUDGET if name in said}
    others = [name for name in said if name not in _BUDGET and said[name] != _NOT_SAID.get(name)]
    if others or manifest.provenance.deployment is None:
        raise InvalidArgument(
            f"{run} goes on as it was begun." if others else f"{run} was not measured from here.",
            fix=f"With resume, leave out {', '.join(others)}." if others else "Begin a new one.",
        )
    known = manifest.provenance
    found = await find(runtime.stage, known.target, known.deployment)
    require_ready(found)
    require_idle(runtime, found)
    plan = with_end(manifest.plan.model_copy(update=budget), found.deployment)
    spent_minutes(folder, plan)  # or its budget is used up
    return Wish(found, plan, folder)


def plan_of(said: Mapping[str, Any]) -> RunPlan:
    """Make a plan of what a call says; limits come in milliseconds.

    Raises:
        InvalidArgument: It cannot be measured so.
    """
    from benchmark import profiles

    limits = {
        f"{name}_seconds": said[f"{name}_ms"] / 1000 for name in _LIMITS if f"{name}_ms" in said
    }
    rest = {key: value for key, value in said.items() if not key.endswith("_ms")}
    if "dataset" in rest:
        rest["dataset"] = str(file_of(rest["dataset"]))
    return profiles.plan_of(**rest, limits=limits)


def to_measure(wanted: Wish) -> Preview | None:
    """Ask where the time of measuring is paid for, or nobody knows whether it is."""
    one, plan, price = wanted.found.deployment, wanted.plan, usd_per_hour(wanted.found.deployment)
    if price == 0:
        return None
    spent = spent_minutes(wanted.folder, plan) if wanted.folder else 0.0
    minutes = most_minutes(plan, price) - spent
    cost = "price not known" if price is None else f"${price * minutes / 60:.2f} at most"
    run = wanted.folder.path.name if wanted.folder else ""
    what = f"Measure {one.name} on {one.target} for up to {minutes:.0f} minutes ({cost})"
    what += f", going on with {run}" if run else f", profile {plan.profile}"
    asked = f"{run}\n{plan.model_dump_json()}"
    return preview("run_benchmark", one.target, one.name, what, price, one, asked)


_LOOK_SECONDS: Final = 12.0
_START_SECONDS: Final = 20.0


async def begin(runtime: Runtime, wanted: Wish) -> RunFolder:
    """Start the process that measures; it outlives this server.

    Raises:
        Busy: It is being measured already.
        EndpointError: It does not say what it serves.
        WaitedTooLong: It, or the process, did not come to it in time.
    """
    with beginning(folder_of_runs(runtime)):
        require_idle(runtime, wanted.found)
        access = runtime.keep_quiet(await wanted.found.backend.access(wanted.found.name))
        base_url = _without_password(access)
        if folder := wanted.folder:
            folder.stop_file.unlink(missing_ok=True)
            manifest = folder.manifest()
            if manifest.plan != wanted.plan:  # another budget
                folder.create(manifest.model_copy(update={"plan": wanted.plan}))
        else:
            from benchmark import profiles

            seen = await _look(runtime, wanted.found)
            simulated = seen.subject.simulated or wanted.found.deployment.simulated
            folder = profiles.make(
                folder_of_runs(runtime),
                base_url=base_url,
                plan=wanted.plan,
                subject=seen.subject.model_copy(update={"simulated": simulated}),
                provenance=await provenance(runtime, wanted.found),
            )
        await _launch(folder, access)
    keep_credential_fresh(runtime, folder)
    return folder


async def _look(runtime: Runtime, found: Found) -> Seen:
    from benchmark import server

    try:
        with anyio.fail_after(_LOOK_SECONDS):
            async with runtime.endpoint(found.backend, found.name) as endpoint:
                return await server.look(endpoint, found.deployment.served_model_name)
    except TimeoutError as exc:
        raise WaitedTooLong(
            f"{found.name} did not say within {_LOOK_SECONDS:.0f} s what it serves.",
            fix="See with verify_model_health whether it answers, then try again.",
        ) from exc


async def _launch(folder: RunFolder, access: Access) -> None:
    folder.keep_certificate(access.certificate)
    folder.keep_credential(access.api_key, access.identity_token)
    before = folder.progress()
    env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
    argv = (sys.executable, "-P", "-m", "benchmark", "resume", str(folder.path))
    detach(argv, env=env, own_session=True)

    async def begun() -> bool:
        return folder.is_measured_now() or folder.progress() != before

    try:
        await wait_until(
            begun,
            bool,
            waiting_for="the process that measures to begin",
            every=0.05,
            timeout=_START_SECONDS,
        )
    except WaitedTooLong as exc:
        folder.keep_credential(None)
        exc.fix = f"Try again with resume={folder.path.name!r}; {folder.log_file} may say more."
        raise


def _without_password(access: Access) -> str:
    """Only a key goes with the load, and a manifest is shown to people."""
    if "@" in urlsplit(access.base_url).netloc:
        raise Unsupported(
            "The endpoint's address holds a password, which no benchmark sends.",
            fix="Give an address without one in VLLM_BASE_URL, and a key in VLLM_API_KEY.",
        )
    return access.base_url
