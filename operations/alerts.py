"""Alert rules for Prometheus, on the metrics that vLLM exports."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from backends.container import as_yaml
from core.address import IDENTITY_HEADER, KEY_HEADER
from core.errors import InvalidArgument, NextStep, NotReady
from core.records import Access, Answer
from core.reply import note
from operations.resolve import Found, find
from operations.runtime import TTFT_SECONDS, Command, Runtime, command

FILE: Final = "vllm.rules.yml"
_ALERTS: Final = Path(__file__).with_name("alerts.toml")
_JOB: Final = "vllm"
_LOOK: Final = "15s"
"""Between two scrapes, and between two looks at the rules: `for: 30s` needs several."""
_CREDENTIAL: Final = "/etc/prometheus/vllm.credential"
_CERTIFICATE: Final = "/etc/prometheus/vllm.pem"
_MATCHER: Final = re.compile(
    r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\[\\"nt])*")\s*(?:(,)|$)', re.ASCII
)
"""One label matcher, as Prometheus writes it, and whether another one follows."""
_NOWHERE: Final = "HOST:PORT"


class AlertRules(Answer):
    """Two files for Prometheus; nothing was sent anywhere."""

    target: str | None = None
    name: str | None = None
    selector: str
    """Of the series that the rules look at."""
    ttft_seconds: float
    alerts: tuple[str, ...]
    rules: str
    """The whole rule file."""
    scrape_config: str
    """What the selector expects in Prometheus' own configuration; it holds no key."""
    steps: tuple[Command, ...]

    def summary(self) -> str:
        """Say what there is and how to check it."""
        return (
            f"{len(self.alerts)} alert rules for {{{self.selector}}}: detail='full' gives `rules`;"
            f" save them as {FILE}, then `promtool check rules {FILE}`."
        )

    def facts(self) -> Mapping[str, Any]:
        """Return which alerts there are; the files are on request."""
        return {"selector": self.selector, "ttft_seconds": self.ttft_seconds, "alerts": self.alerts}

    def warnings(self) -> tuple[str, ...]:
        """Say what reading metrics costs."""
        awake = "where a deployment scales to none, it keeps a GPU awake, which is paid for"
        return (f"A scrape is a request: {awake}. There, scrape what has min_replicas above 0.",)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Look at the numbers as they are now."""
        here = {"target": self.target, "name": self.name} if self.name else {}
        return (NextStep("get_metrics", here),)


async def alert_rules(
    runtime: Runtime,
    target: str | None,
    name: str | None,
    *,
    selector: str | None = None,
    ttft_seconds: float = TTFT_SECONDS,
) -> AlertRules:
    """Write the rules, of one deployment where one is named, else of all that a job scrapes.

    Raises:
        InvalidArgument: The selector is none.
        OpsError: The deployment that is named cannot be found.
    """
    found = await find(runtime.stage, target, name) if target or name else None
    labels = {"job": _JOB}  # that our own scrape configuration sets
    if found:
        labels |= {"target": found.deployment.target, "deployment": found.name}
    wanted = _checked(selector) if selector else ",".join(f'{k}="{v}"' for k, v in labels.items())
    access = await _access(runtime, found) if found else None
    rows = [_rule(row, wanted, ttft_seconds, found) for row in _catalogue()]
    group = {"name": _JOB, "interval": _LOOK, "rules": rows}
    return AlertRules(
        target=found.deployment.target if found else None,
        name=found.name if found else None,
        selector=wanted,
        ttft_seconds=ttft_seconds,
        alerts=tuple(row["alert"] for row in rows),
        rules=as_yaml({"groups": [group]}),
        scrape_config=as_yaml({"scrape_configs": [_scrape(access, labels)]}),
        steps=(
            *_credential(access),
            command("Check the rules", "promtool", "check", "rules", FILE),
        ),
    )


@cache
def _catalogue() -> Sequence[Mapping[str, Any]]:
    """The rows of `alerts.toml`, which has their sources."""
    rows: Sequence[Mapping[str, Any]] = tomllib.loads(_ALERTS.read_text("utf-8"))["alert"]
    return rows


def _rule(
    row: Mapping[str, Any], selector: str, ttft_seconds: float, found: Found | None
) -> dict[str, Any]:
    where = f"target={found.deployment.target} name={found.name}" if found else ""
    whose = f"with {where or 'the target and name of the deployment'}"
    first, *others = row["call"]
    more = f"; then, as it says: {', '.join(others)}" if others else ""
    expr, description = (
        row[part].strip().replace("SELECTOR", selector).replace("TTFT_SECONDS", f"{ttft_seconds:g}")
        for part in ("expr", "description")
    )
    return {
        "alert": row["name"],
        "expr": expr,
        "for": row["for"],
        "labels": {"severity": row["severity"]},
        "annotations": {
            "summary": row["summary"],
            "description": description,
            "runbook": f"Call {first} {whose}{more}.",
        },
    }


def _checked(selector: str) -> str:
    """Read label matchers one by one, so that nothing else gets into an expression."""
    rest, matchers = selector.strip().removeprefix("{").removesuffix("}"), []
    while match := _MATCHER.match(rest):
        label, how, value, more = match.groups()
        try:
            re.compile(value[1:-1] if "~" in how else "")
        except re.error:
            break
        matchers.append(f"{label}{how}{value}")
        if not more:
            return ",".join(matchers)
        rest = rest[match.end() :]
    raise InvalidArgument(
        f"{selector!r} is not a list of label matchers.",
        fix='Give it as Prometheus writes it: job="vllm",instance=~"gpu.*"',
    )


async def _access(runtime: Runtime, found: Found) -> Access | None:
    try:
        access = runtime.keep_quiet(await found.backend.access(found.name))
    except NotReady as exc:
        note(f"Its address is not known yet. {exc.summary}")
        return None
    if access.socket:
        note(
            "Prometheus scrapes no unix socket: put a proxy on a port before it, or deploy it"
            " with access=private."
        )
    return access


def _scrape(access: Access | None, labels: Mapping[str, str]) -> dict[str, Any]:
    address = urlsplit(access.base_url if access else "")
    more = {key: value for key, value in labels.items() if key != "job"}
    at = {"targets": [address.netloc or _NOWHERE], **({"labels": more} if more else {})}
    config: dict[str, Any] = {
        "job_name": _JOB,
        "scrape_interval": _LOOK,
        "scheme": address.scheme or "https",
        "metrics_path": f"{address.path}/metrics",
    }
    if access is None or access.headers:
        config["authorization"] = {"credentials_file": _CREDENTIAL}
    if access and access.certificate:
        config["tls_config"] = {"ca_file": _CERTIFICATE}
    return {**config, "static_configs": [at]}


def _credential(access: Access | None) -> tuple[Command, ...]:
    """Say how the files are filled that the scrape configuration names."""
    if access is None:
        return ()
    header = IDENTITY_HEADER if IDENTITY_HEADER in access.header_commands else KEY_HEADER
    steps = []
    if shown := access.header_commands.get(header):
        often = " Again every half hour: it ends after one." if header == IDENTITY_HEADER else ""
        what = f"Keep what the endpoint wants to see where Prometheus reads it.{often}"
        steps.append(Command(what=what, command=f"{shown} > {_CREDENTIAL}"))
    if access.certificate_command:
        what = "Keep the certificate that it signs for itself."
        steps.append(Command(what=what, command=f"{access.certificate_command} > {_CERTIFICATE}"))
    return tuple(steps)
