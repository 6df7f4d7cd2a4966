"""`python -m tests.money SEED [--trace]`: play one history of the billing projection again; `FIRST-LAST`: many."""

import argparse
import logging
import sys
import time
import traceback

import structlog

from tests.money.world import World


def play(seed: int, *, trace: bool = False) -> World:
    """One history, checked. Raises `Broken`."""
    world = World(seed, trace=print if trace else None)
    world.run()
    return world


def quiet() -> None:
    """Let the product's own logs be silent."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)


def main() -> int:
    """Exit code 1 when a history breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--trace", action="store_true", help="print what happens to the processes")
    chosen = parser.parse_args()
    quiet()
    first, _, last = chosen.seeds.partition("-")
    failed = kills = reads = 0
    began = time.perf_counter()
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        try:
            world = play(seed, trace=chosen.trace)
            kills, reads = kills + world.kills, reads + world.reads
        except Exception as error:  # noqa: BLE001 - whatever breaks a history is what is looked for
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}")
            if chosen.trace:
                traceback.print_exc()
    took = time.perf_counter() - began
    print(f"{len(seeds)} histories with {kills} kills and {reads} reads in {took:.1f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
