"""`python -m tests.simulation SEED [--trace]`: play one history again; `FIRST-LAST` plays many and names what fails."""

import argparse
import gc
import logging
import sys
import time
import traceback

import structlog

from tests.simulation.checker import check
from tests.simulation.world import World

GARBAGE = (50_000, 20, 100)
"""A history makes many small objects and few cycles: so collected, it takes a quarter less time."""


def play(seed: int, *, trace: bool = False) -> World:
    """One history, checked. Raises AssertionError."""
    gc.set_threshold(*GARBAGE)
    world = World(seed, trace=print if trace else None)
    world.run()
    check(world)
    return world


def quiet() -> None:
    """Let the product's own logs be silent."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def main() -> int:
    """Exit code 1 when a history breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--trace", action="store_true", help="print what happens to the processes")
    chosen = parser.parse_args()
    quiet()
    logging.disable(logging.CRITICAL)
    first, _, last = chosen.seeds.partition("-")
    failed, crashes, began = 0, 0, time.perf_counter()
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        try:
            crashes += play(seed, trace=chosen.trace).crashes
        except Exception as error:  # noqa: BLE001 - whatever breaks a history is what is looked for
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}")
            if chosen.trace:
                traceback.print_exc()
    took = time.perf_counter() - began
    print(f"{len(seeds)} histories with {crashes} crashes in {took:.1f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
