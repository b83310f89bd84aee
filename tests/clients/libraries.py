"""Libraries that agents are written with, each in a process of the environment they share."""

import json
from pathlib import Path
from typing import Final

from tests.clients.desk import Desk
from tests.clients.installing import Installed
from tests.clients.seen import DESTROY, HELP, Seen

_SCRIPT: Final = Path(__file__).with_name("library.py")


async def library(name: str, desk: Desk, found: Installed) -> Seen:
    """Run the library's few lines; they print what it has of us."""
    await desk.configure("cursor")
    calls = [[HELP, {}], [DESTROY.tool, DESTROY.arguments]]
    wish = json.dumps({"entry": dict(desk.entry), "calls": calls})
    # -P: the modules beside the script are ours, and one is called as a package of theirs.
    said = await desk.run(str(found.python), "-P", str(_SCRIPT), name, wish)
    shown = json.loads(said.output)
    return Seen(shown["tools"], shown["told"])
