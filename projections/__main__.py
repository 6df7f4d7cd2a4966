"""The processes of this package: `python -m projections buffer|limits|meters|views [--check]`."""

import sys

USAGE = "usage: python -m projections buffer|limits|meters|views [--check]\n"


def command(arguments: list[str]) -> int:
    """Run one of them; the exit code. Each imports only what it needs."""
    match arguments:
        case ["buffer", *rest]:
            from projections.buffer import __main__ as buffer

            return buffer.command(rest)
        case ["views", *rest]:
            from projections.views import __main__ as views

            return views.command(rest)
        case ["limits", *rest]:
            from projections.limits import __main__ as limits

            return limits.command(rest)
        case ["meters", *rest]:
            from projections.meters import __main__ as meters

            return meters.command(rest)
        case _:
            sys.stderr.write(USAGE)
            return 2


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
