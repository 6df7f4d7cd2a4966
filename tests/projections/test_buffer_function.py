"""The function in the real server: whatever is sent, in whatever order and how often, one list comes out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ResponseError

from projections.buffer import keys
from projections.redis import functions
from tests.projections.logs import fresh_namespace

pytestmark = pytest.mark.servers

FRAMES = [b"id: %d\n\n" % n for n in range(1, 13)]


class Buffer:
    """A reply's buffer, by its function."""

    def __init__(self, redis):
        self.redis = redis
        self.namespace = fresh_namespace()
        self.frames = keys.frames(self.namespace, "r")
        self.head = keys.head(self.namespace, "r")
        self.channel = keys.live(self.namespace, "r")

    def open(self):
        return self.redis.fcall(functions.OPEN.decode(), 2, self.frames, self.head, 60_000, "status", "queued")

    def append(self, first, frames, ends=0, words=()):
        args = [self.channel, first, ends, len(words), len(frames), *words, *frames]
        [at] = self.redis.fcall(functions.APPEND.decode(), 2, self.frames, self.head, 60_000, *args)
        return at

    def list(self):
        return self.redis.lrange(self.frames.decode(), 0, -1)


@pytest.fixture(scope="module")
def redis(servers):
    functions.load(servers.redis_url)
    return Redis.from_url(servers.redis_url)


@pytest.fixture
def buffer(redis):
    made = Buffer(redis)
    yield made
    redis.delete(made.frames, made.head)


def test_frames_that_are_there_are_skipped_and_the_rest_is_appended(buffer):
    assert buffer.open() == 0
    assert buffer.append(1, FRAMES[:3]) == 3
    assert buffer.append(2, FRAMES[1:5]) == 5
    assert buffer.append(1, FRAMES[:2]) == 5
    assert buffer.list() == FRAMES[:5]


def test_a_gap_is_refused_and_changes_nothing(buffer):
    buffer.open()
    buffer.append(1, FRAMES[:2])
    assert buffer.append(4, FRAMES[3:5], words=("status", "running")) == functions.GAP
    assert buffer.list() == FRAMES[:2]
    assert buffer.redis.hget(buffer.head.decode(), "status") == b"queued"


def test_a_reply_that_is_not_open_takes_nothing(buffer):
    assert buffer.append(1, FRAMES[:1]) == functions.GAP
    assert buffer.list() == []


def test_opening_again_changes_nothing(buffer):
    buffer.open()
    buffer.append(1, FRAMES[:2], words=("status", "running"))
    assert buffer.open() == 2
    assert buffer.redis.hget(buffer.head.decode(), "status") == b"running"


def test_after_the_end_nothing_is_appended_and_everything_expires(buffer):
    buffer.open()
    assert buffer.append(1, FRAMES[:3], ends=5_000, words=("status", "completed")) == 3
    assert buffer.append(4, FRAMES[3:4]) == functions.CLOSED
    assert buffer.append(2, FRAMES[1:3]) == 3
    assert buffer.open() == functions.CLOSED
    assert buffer.list() == FRAMES[:3]
    assert 0 < buffer.redis.pttl(buffer.frames.decode()) <= 5_000
    assert 0 < buffer.redis.pttl(buffer.head.decode()) <= 5_000


def test_a_list_whose_head_was_lost_begins_anew(buffer):
    buffer.open()
    buffer.append(1, FRAMES[:3])
    buffer.redis.delete(buffer.head.decode())
    assert buffer.append(4, FRAMES[3:4]) == functions.GAP
    assert buffer.open() == 0
    assert buffer.append(1, FRAMES[:4]) == 4


def test_what_is_published_is_what_was_appended(buffer):
    buffer.open()
    listener = buffer.redis.pubsub()
    listener.ssubscribe(buffer.channel.decode())
    assert listener.get_sharded_message(timeout=5)["type"] == "ssubscribe"
    buffer.append(1, FRAMES[:1])
    buffer.append(1, FRAMES[:3])
    buffer.append(2, FRAMES[1:3])
    buffer.append(4, FRAMES[3:4])
    found = [listener.get_sharded_message(timeout=5)["data"] for _ in range(3)]
    listener.close()
    assert found == [b"1-1\n" + FRAMES[0], b"2-3\n" + FRAMES[1] + FRAMES[2], b"4-4\n" + FRAMES[3]]


MOVES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 12)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(MOVES)
def test_any_split_repetition_and_interleaving_of_two_writers_gives_the_one_list(redis, moves):
    buffer = Buffer(redis)
    positions = [0, 0]
    # Each move: a writer goes back by some frames (a replay) and appends some; at the end both catch up.
    for writer, back, count in [*moves, (0, 0, 12), (1, 12, 12)]:
        if positions[writer] == 0:
            buffer.open()
        first = max(0, positions[writer] - back)
        last = min(first + count, len(FRAMES))
        ends = 60_000 if last == len(FRAMES) and first < last else 0
        if first < last:
            buffer.append(first + 1, FRAMES[first:last], ends=ends)
        positions[writer] = max(positions[writer], last)
        assert buffer.list() == FRAMES[: max(positions)]
    assert buffer.list() == FRAMES
    redis.delete(buffer.frames, buffer.head)


def test_one_call_appends_to_many_replies_and_says_of_each_how_it_went(redis):
    one, two, three = Buffer(redis), Buffer(redis), Buffer(redis)
    one.open()
    two.open()
    args = []
    for buffer, first in ((one, 1), (two, 2), (three, 1)):
        args += [buffer.channel, first, 0, 0, 1, FRAMES[0]]
    names = [name for buffer in (one, two, three) for name in (buffer.frames, buffer.head)]
    assert redis.fcall(functions.APPEND.decode(), 6, *names, 60_000, *args) == [1, functions.GAP, functions.GAP]
    redis.delete(*names)


def test_a_marker_keeps_its_name_and_never_goes_back(redis):
    key = keys.marker(fresh_namespace(), 3)

    def mark(new, expected, least, position):
        return redis.fcall(functions.MARK.decode(), 1, key, new, expected, least, position)

    assert mark("a", "", 0, 5) == b"a"
    assert mark("b", "", 0, 3) == b"a"
    assert mark("b", "a", 5, 9) == b"a"
    assert mark("b", "a", 10, 10) == b""  # rolled back: what was acknowledged is not there
    assert mark("b", "c", 0, 10) == b""
    redis.delete(key)
    assert mark("b", "a", 5, 9) == b""
    assert mark("b", "", 0, 1) == b"b"
    redis.delete(key)


def test_loading_again_is_harmless_and_old_versions_stay(redis, servers):
    other = functions.SOURCE.replace(functions.VERSION, "00000000")
    redis.function_load(other)
    try:
        assert functions.load(servers.redis_url) == ()
        names = {entry[1] for entry in redis.function_list("turnlog_buffer_*")}
        assert {functions.LIBRARY.encode(), b"turnlog_buffer_00000000"} <= names
    finally:
        redis.function_delete("turnlog_buffer_00000000")
    with pytest.raises(ResponseError):
        redis.fcall("turnlog_append_00000000", 0)
