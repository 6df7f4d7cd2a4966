"""Resident memory of each part of the local stack at rest, real model included; nothing to compare it with.

A part's figure is the resident set of its process and descendants, so pages that two processes share count in both.
"""

import sys
import time

from tests.benchmarks import processes, report
from tests.benchmarks.stack import Stack, running

REST_S = 10.0
TARGET_GB = 1.6


def measure(stack: Stack, engine: str) -> report.Result:
    """Wait until it is at rest, and read."""
    time.sleep(REST_S)
    pids = stack.pids()
    before = processes.costs(pids)
    time.sleep(REST_S)
    after = processes.costs(pids)
    idle = processes.spent(before, after)
    parts = sorted(after.items(), key=lambda part: -part[1].resident_bytes)
    total_gb = sum(part.resident_bytes for part in after.values()) / 1e9
    rows = [(name, f"{part.resident_bytes / 1e6:.0f} MB", f"{idle[name] / REST_S:.1%}") for name, part in parts]
    rows.append(("sum", f"{total_gb * 1000:.0f} MB", f"{sum(idle.values()) / REST_S:.1%}"))
    figures = {"resident_gb": total_gb, "idle_cpu_share": sum(idle.values()) / REST_S}
    figures |= {f"{name}_mb": part.resident_bytes / 1e6 for name, part in parts}
    table = report.Table("At rest", ("part", "resident", "CPU, of one core"), tuple(rows))
    reached = {f"the whole local stack at rest in {TARGET_GB} GB": total_gb <= TARGET_GB}
    how = f"The stack with engine {engine}, {REST_S:g} s after it became ready; CPU over {REST_S:g} s more."
    return report.result("footprint", how, [table], figures, reached)


def main() -> int:
    """Run it; exit code 1 when the target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--engine", default="llama_cpp")
    chosen = parser.parse_args()
    with running("--engine", chosen.engine) as stack:
        return report.finish(measure(stack, chosen.engine), chosen)


if __name__ == "__main__":
    sys.exit(main())
