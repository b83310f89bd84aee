"""`python -m planner MODEL --accelerator l4 [vLLM's flags]`: whether it fits, from a shell."""

import argparse
import sys

from core.errors import OpsError
from core.records import valid
from core.settings import Settings
from planner.flags import Flags, engine_flags, engine_words, unplanned_flags
from planner.memory import plan_memory, table
from planner.model import read_hub_model, read_model
from planner.places import accelerator, accelerators


def main(words: list[str] | None = None) -> int:
    """Print the plan; 0 it fits, 1 it does not, 2 not understood."""
    parser = argparse.ArgumentParser(
        prog="python -m planner", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("model", help="a folder, a catalog name such as `12b qat`, or its Hub id")
    parser.add_argument(
        "--accelerator", required=True, type=str.lower, choices=list(accelerators())
    )
    parser.add_argument("--accelerator-memory-gib", type=float, help="instead of the usual")
    parser.add_argument("--json", action="store_true", help="every figure, for a program")
    parser.add_argument(
        "--from-hub", action="store_true", help="read a few kB of the model's headers on the Hub"
    )
    said, flags = parser.parse_known_args(words)
    try:
        if said.from_hub:
            read = read_hub_model(said.model, token=Settings().hf_token)
        else:
            read = read_model(said.model)
        device = accelerator(said.accelerator)
        if said.accelerator_memory_gib is not None:
            device = device.model_copy(update={"memory_gib": said.accelerator_memory_gib})
        plan = plan_memory(read, device, valid(Flags, engine_flags(engine_words(flags))))
    except OpsError as exc:
        sys.stderr.write(f"{exc.summary} {exc.cause}".rstrip() + f"\n{exc.fix}\n")
        return 2
    if passed_over := unplanned_flags(engine_words(flags)):
        sys.stderr.write(f"The plan does not look at {', '.join(passed_over)}.\n")
    text = plan.model_dump_json(indent=2) if said.json else "\n".join(table(plan))
    sys.stdout.write(f"{text}\n")
    return 0 if plan.fits else 1


if __name__ == "__main__":
    sys.exit(main())
