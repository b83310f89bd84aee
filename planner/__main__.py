"""`python -m planner`: foresee from a shell."""

import argparse
import sys

from core.errors import OpsError
from planner import commandline


def main(words: list[str] | None = None) -> int:
    """Run one command; 0 yes, 1 no, 2 not understood."""
    parser = argparse.ArgumentParser(prog="python -m planner", description=__doc__)
    known = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (commandline.add_fit, commandline.add_commands, commandline.add_judge):
        add(known)
    arguments = parser.parse_args(words)
    try:
        return int(arguments.run(arguments))
    except OpsError as exc:
        sys.stderr.write(f"{exc.summary} {exc.cause}".rstrip() + f"\n{exc.fix}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
