"""Benchmarks of the whole product from outside, each beside a direct run of the same engine.

`python -m tests.benchmarks [NAME…]` runs them and writes their tables into docs/benchmarks.md;
`python -m tests.benchmarks.NAME [options]` runs one and prints its table.
"""

BENCHMARKS: tuple[str, ...] = (
    "startup",
    "footprint",
    "first_token",
    "resume",
    "throughput",
    "open_streams",
    "readers",
    "resume_storm",
    "recovery",
    "failover",
    "overload",
    "goodput",
    "dispatch_decisions",
    "llama_worker",
    "batching",
    "views_insert",
    "bill_month",
    "rebuild",
    "reserve_settle",
)
"""Those that `make bench` runs, in this order."""
