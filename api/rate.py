"""Requests per minute of an account: a bucket that refills evenly (GCRA), as one value.

The value is the theoretical arrival time (`tat_us`): when the bucket will be full again. A request moves it by one
interval; it is allowed while the bucket does not hold less than it takes. A refusal changes nothing. The script in
`api.redis_scripts` computes the same inside Redis, on Redis' clock; one test holds both equal.

Source: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm, virtual scheduling.
"""

from api.stores import BucketState, Rate


def take(tat_us: int, rate: Rate, cost: int, now_us: int) -> tuple[int, BucketState]:
    """The new value, and what the bucket answers to a request of this cost (0 only looks)."""
    interval_us, capacity = rate.interval_us, rate.per_minute
    tat_us = max(tat_us, now_us)
    after_us = tat_us + cost * interval_us
    allowed_at_us = after_us - capacity * interval_us
    if allowed_at_us > now_us:
        available = (capacity * interval_us - (tat_us - now_us)) // interval_us
        wait_ms = -(-(allowed_at_us - now_us) // 1000)
        return tat_us, BucketState(False, wait_ms, max(available, 0))
    available = (capacity * interval_us - (after_us - now_us)) // interval_us
    return after_us, BucketState(True, 0, available)
