"""Whether MCP clients know this server."""

from collections.abc import Iterator

from core.environment import ROOT, inherited_environment
from operations.clients.seen import look
from operations.clients.table import clients
from operations.doctor.findings import Finding


def configured() -> Iterator[Finding]:
    """Say of each client whose configuration is there whether it starts this checkout."""
    seen = [one for one in look(ROOT, inherited_environment()) if one.state != "absent"]
    for one in seen:
        name = one.client.name
        verdict, fix = {
            "well": ("ok", ""),
            "off": ("missing", f"Switch it on there, or in {one.client.title}, if you want it."),
            "without": ("missing", f"Run `make mcp-config CLIENT={name} WRITE=1`."),
            "wrong": ("warning", f"Run `make mcp-config CLIENT={name} WRITE=1`."),
            "unreadable": ("warning", f"Mend it, or see `make mcp-config CLIENT={name}`."),
        }[one.state]
        yield Finding.model_validate(
            {
                "area": "clients",
                "about": one.client.title,
                "verdict": verdict,
                "detail": one.detail,
                "fix": fix,
            }
        )
    if not seen:
        first, *others = (client.name for client in clients())
        yield Finding(
            area="clients",
            about="MCP clients",
            verdict="missing",
            detail="None that is known is configured here.",
            fix=f"Run `make mcp-config CLIENT={first} WRITE=1`; or one of: {', '.join(others)}.",
        )
