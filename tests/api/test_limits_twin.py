"""The functions in the real server are those of the twin, answer for answer, whatever is asked in whatever order."""

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from redis import Redis

from api.limits import Demand, bucket_words, confirm_words, reserve_words
from api.limits_twin import LimitsTwin, Settled
from projections.redis import functions
from schemas.tiers import DEFAULT_TIERS, Holder, all_buckets, buckets_of
from schemas.tiers.library import CONFIRM, LOOK, RELEASE, RESERVE, SETTLE
from tests.api.demands import demand
from tests.projections.logs import fresh_namespace

pytestmark = pytest.mark.servers

RULES = (
    replace(DEFAULT_TIERS["free"], requests_per_minute=5, tokens_per_minute=77, burst_tokens=400, running_max=3),
    replace(
        DEFAULT_TIERS["free"],
        requests_per_minute=60_000_000,
        tokens_per_minute=1_000_000_000,
        model_tokens_per_minute={"m": 59_999_999},
        pool_tokens_per_minute={"p": 1_000},
        organisation_tokens_per_minute=2_000,
        running_max=4,
    ),
    replace(DEFAULT_TIERS["free"], tokens_per_minute=1, burst_tokens=1_000_000_000, organisation_tokens_per_minute=61),
)
HOLDERS = (Holder("a"), Holder("b", "org"), Holder("c", "org"))
SHIFT = """
local shift = tonumber(ARGV[1])
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    local items = redis.call('HGETALL', key)
    for i = 1, #items, 2 do
      local name, value = items[i], items[i + 1]
      if name == 'next' or name == 'first' then
        redis.call('HSET', key, name, string.format('%.0f', value - shift))
      elseif string.sub(key, -5) == ':held' then
        local due, micro = struct.unpack('<dd', value)
        redis.call('HSET', key, name, struct.pack('<dd', due - shift, micro) .. string.sub(value, 17))
      elseif string.sub(name, 1, 6) == 'again:' then
        local level, at, lately = struct.unpack('<ddd', value)
        redis.call('HSET', key, name, struct.pack('<ddd', level, at - shift, lately))
      elseif not string.find(key, ':said:', 1, true) then
        local level, at = struct.unpack('<dd', value)
        redis.call('HSET', key, name, struct.pack('<dd', level, at - shift))
      end
    end
  end
end
"""


class Server:
    """The functions, in a namespace of their own."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self.namespace = fresh_namespace()

    def call(self, name: bytes, holder: Holder, words: list[bytes]) -> Any:
        return self.redis.fcall(name.decode(), 2, *holder.keys(self.namespace), *words)

    def settle(self, holder: Holder, end: Settled) -> Any:
        words = [end.reply_id.encode(), end.conversation_id.encode(), b"%d" % end.done_ms, b"3600000"]
        words += [b"%d" % end.young, b"%d" % end.since_us, b"%d" % end.ended_us]
        words += [b"%d" % end.tokens, b"%d" % end.input_tokens]
        return self.call(SETTLE, holder, [*words, b"%d" % end.output_tokens, *bucket_words(end.buckets)])

    def stored(self) -> list[bytes]:
        return list(self.redis.scan_iter(f"{self.namespace}:*", count=1_000))

    def earlier(self, us: int) -> None:
        """Everything happened so long before."""
        keys = self.stored()
        if keys:
            self.redis.eval(SHIFT, len(keys), *keys, us)


class Twin(LimitsTwin):
    """With the same hand on the clock."""

    def earlier(self, us: int) -> None:
        for hash_ in (*self._accounts.values(), *self._shared.values()):
            hash_.levels = {name: (level, at - us) for name, (level, at) in hash_.levels.items()}
            hash_.again = {name: (level, at - us, lately) for name, (level, at, lately) in hash_.again.items()}
            hash_.first = None if hash_.first is None else hash_.first - us
        for account in self._accounts.values():
            for held in account.held.values():
                held.until_us -= us


@pytest.fixture(scope="module")
def redis(servers: Any) -> Any:
    functions.load(servers.redis_url)
    return Redis.from_url(servers.redis_url)


@st.composite
def moves(draw: Any) -> list[tuple[Any, ...]]:
    holder = st.sampled_from(HOLDERS)
    reply = st.sampled_from(["r1", "r2", "r3", "r4", "r5"])
    conversation = st.sampled_from(["c1", "c2"])
    tokens = st.integers(0, 500)
    before = st.sampled_from(["none", "last", "most", 7, 90_000])
    ago = st.none() | st.integers(0, 200_000_000)
    """When it ended, where buckets are made again."""
    one = st.one_of(
        st.tuples(st.just("reserve"), holder, reply, conversation, tokens, tokens, before),
        st.tuples(st.just("confirm"), holder, reply, conversation, tokens, tokens, before),
        st.tuples(st.just("release"), holder, reply),
        st.tuples(st.just("settle"), holder, reply, conversation, tokens, tokens, st.booleans(), ago),
        st.tuples(st.just("look"), holder),
        st.tuples(st.just("wait"), st.sampled_from([1, 999, 1_000_000, 14_999_999, 15_000_001, 61_000_000, 10**10])),
    )
    return draw(st.lists(one, max_size=40))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from(RULES), moves())
def test_the_functions_answer_as_the_twin_does(redis: Any, rules: Any, asked: list[tuple[Any, ...]]) -> None:
    server, twin = Server(redis), Twin()
    try:
        for kind, *what in asked:
            _both(server, twin, rules, kind, what)
        for holder in HOLDERS:
            _both(server, twin, rules, "look", [holder])
    finally:
        for key in server.stored():
            redis.delete(key)


def _both(server: Server, twin: Twin, rules: Any, kind: str, what: list[Any]) -> None:
    if kind == "wait":
        server.earlier(what[0])
        twin.earlier(what[0])
        return
    holder: Holder = what[0]
    match kind:
        case "reserve" | "confirm":
            asked = _demand(rules, *what)
            if kind == "confirm":
                real = server.call(CONFIRM, holder, confirm_words(asked))
                assert real == twin.confirm(asked, server.redis.time()[0] * 1_000_000)
                _same_lease(server, twin, asked)
                return
            real = server.call(RESERVE, holder, reserve_words(asked))
            assert real == twin.reserve(asked, real[0])
            _same_lease(server, twin, asked)
        case "release":
            real = server.call(RELEASE, holder, [what[1].encode()])
            assert real == twin.release(holder, what[1])
        case "settle":
            _, reply, conversation, tokens, output, young, ago_us = what
            now_us = server.redis.time()[0] * 1_000_000
            end = Settled(
                reply_id=reply,
                conversation_id=conversation,
                done_ms=3_600_000,
                young=young,
                since_us=0 if ago_us is None else now_us - 30_000_000,
                ended_us=now_us - (ago_us or 0),
                tokens=tokens,
                input_tokens=tokens,
                output_tokens=output,
                buckets=buckets_of(rules, "m", "p", holder),
            )
            real = server.settle(holder, end)
            assert real == twin.settle(holder, end, real[0] or now_us)
        case "look":
            buckets = all_buckets(rules, holder)
            real = server.call(LOOK, holder, bucket_words(buckets))
            assert real == twin.look(holder, buckets, real[0])


def _demand(rules: Any, holder: Holder, reply: str, conversation: str, prompt: int, output: int, before: Any) -> Demand:
    return demand(
        reply,
        holder.account_id,
        rules,
        conversation_id=conversation,
        organisation_id=holder.organisation_id,
        prompt_tokens=prompt,
        output_tokens=output,
        before=before,
    )


def _same_lease(server: Server, twin: Twin, asked: Demand) -> None:
    """The twin takes over when the lease of a reservation ends: a call that tells no time has one of its own."""
    key, _ = asked.holder.keys(server.namespace)
    value = server.redis.hget(key + b":held", asked.reply_id)
    until = int(struct.unpack("<d", value[:8])[0]) if value else None
    held = twin._account(asked.holder).held.get(asked.reply_id)
    assert (until is None) == (held is None)
    if held is not None and until is not None:
        held.until_us = until
