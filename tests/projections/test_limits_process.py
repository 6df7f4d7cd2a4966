"""The limits' process as it is started, killed in the middle, and with its Redis emptied under it."""

import signal
import time

import pytest
from redis import Redis

from api.limits import bucket_words, looked, outcome, reserve_words
from infra.accounts import open_account
from schemas.events import LimitsChanged
from schemas.tiers import DEFAULT_TIERS, Holder, all_buckets
from schemas.tiers.library import LOOK, RESERVE, marker_keys
from streams.log.kafka.log import KafkaLog
from streams.log.steps import Output
from tests.api.demands import demand
from tests.projections.test_limits_step import ended, replace
from tests.projections.test_processes import Running, eventually

pytestmark = pytest.mark.servers

RULES = replace(DEFAULT_TIERS["free"], tokens_per_minute=1, burst_tokens=1_440, running_max=1_000)


def test_each_reply_is_settled_once_whenever_the_process_is_killed_and_redis_emptied(provisioned, tmp_path):
    redis = Redis.from_url(provisioned.redis_url)
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test")
    writer = log.writer("test")
    own = LimitsChanged(account_id="a", changed_at_ms=1, tokens_per_minute=1, burst_tokens=1_440, running_max=1_000)
    for event in (open_account("a", "A", "free", 1), own):
        writer.append(Output(event=event))
    writer.flush(10)
    keys = Holder("a").keys(provisioned.namespace)
    buckets = all_buckets(RULES, Holder("a"))[1:]

    def level():
        answer = redis.fcall(LOOK.decode(), 2, *keys, *bucket_words(buckets))
        return round(looked(answer, buckets, 1_000).standing.levels[0].micro / 1e6)

    def whole():
        return redis.get(marker_keys(provisioned.namespace)[1])

    running = Running("limits", provisioned.environment(), tmp_path)
    try:
        eventually(whole, "the buckets are whole")
        for round_ in range(4):
            replies = [f"rep_{round_}_{n}" for n in range(10)]
            for reply in replies:
                asked = demand(reply, rules=RULES)
                outcome(redis.fcall(RESERVE.decode(), 2, *keys, *reserve_words(asked)), asked)
            for reply in replies + replies[:3]:
                writer.append(Output(event=ended(reply, 10)))
            writer.flush(10)
            running.end(signal.SIGKILL)
            running.start()
            eventually(lambda r=round_: level() == 1_440 - 100 * (r + 1), f"round {round_}")
        for key in redis.scan_iter(f"{provisioned.namespace}:*", count=1_000):
            redis.delete(key)
        eventually(whole, "the buckets are made again")
        assert level() == 1_440 - 400
        until = time.monotonic() + 2
        eventually(lambda: time.monotonic() > until, "nothing more happens")
        assert level() == 1_440 - 400
        assert running.end(signal.SIGTERM) == 0
    finally:
        running.end(signal.SIGKILL)
        writer.close()
        log.close()
