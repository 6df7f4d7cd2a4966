"""`python -m tests.chaos [--kills N | --minutes N] [--seed N]`: kill and pause parts of a real stack at random, check
the promises.

With `--only worker` workers are also told to drain, their engine falls silent, some replies hang in it or crash their
worker, and the attempts are compared in the stream, the API, the views, the log and the metrics.

Prints a line for each kill and a summary. When a promise is broken it prints the seed, keeps the data and what the
clients saw, and exits with 1.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest has it

from tests.chaos.run import Plan, of_workers, run, save
from tests.chaos.wreck import Arms


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--minutes", type=float, help="as many kills as fit into this time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--every", type=float, default=8.0, help="seconds between two kills, about")
    parser.add_argument("--only", default="", help="strike only parts whose names begin so")
    parser.add_argument("--data", type=Path, help="the data folder (a temporary one)")
    parser.add_argument("--without", default="", help="a guard to take out; see `tests/chaos/unguarded`")
    chosen = parser.parse_args()
    data = chosen.data or Path(tempfile.mkdtemp(prefix="turnlog-chaos-"))
    kills, within_s = (None, chosen.minutes * 60) if chosen.minutes else (chosen.kills, None)
    plan = Plan(
        data,
        kills,
        chosen.seed,
        within_s,
        chosen.every,
        workers=chosen.workers,
        arms=Arms(chosen.only),
        env=unguarded(chosen.without),
    )
    if chosen.only == "worker":
        plan = of_workers(plan)
    result = run(plan, lambda line: print(line, flush=True))
    if not result.report.broken:
        if chosen.data is None:
            shutil.rmtree(data, ignore_errors=True)
        return 0
    for broken in result.report.broken[:20]:
        print(broken)
    print(f"seed {plan.seed}; the data and logs are in {data}, what the clients saw in {save(result, data)}")
    return 1


def unguarded(guard: str) -> dict[str, str]:
    """The environment in which every process starts without a guard."""
    if not guard:
        return {}
    folder = Path(__file__).parent / "unguarded"
    return {"PYTHONPATH": str(folder), "TURNLOG_CHAOS_WITHOUT": guard}


if __name__ == "__main__":
    sys.exit(main())
