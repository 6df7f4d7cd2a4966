"""The buffer on the real server: nothing lost, nothing doubled, whoever writes and whatever Redis loses."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.cluster import RedisCluster

from infra.ports import free_port
from projections.buffer import keys
from projections.buffer.replies import Limits
from projections.redis import functions
from schemas.stream import parse_frame
from streams.log.steps import Busy
from tests.projections.logs import TOKENS, Run, arrived, buffer_step, buffered, expected, fresh_namespace
from tests.projections.valkey import Valkey
from tests.schemas.histories import ended, histories, interleaved, piece, queued, repeated, started

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def redis(servers):
    functions.load(servers.redis_url)
    return Redis.from_url(servers.redis_url)


@pytest.fixture
def namespace(redis):
    name = fresh_namespace()
    yield name
    for key in redis.scan_iter(f"{name}:*", count=1000):
        redis.delete(key)


@pytest.fixture
def valkey(tmp_path):
    server = Valkey(tmp_path)
    server.start()
    yield server
    server.kill()


def reply(reply_id, pieces, g="g"):
    """A whole reply's events."""
    texts = [piece(g, 1, seq, f"{reply_id} {seq}", reply_id) for seq in range(1, pieces + 1)]
    return [queued(reply_id), started(g, 1, reply_id), *texts, ended(g, 1, pieces + 1, reply_id=reply_id)]


def woven(count, pieces):
    """Several replies, one record of each in turn."""
    replies = [reply(f"r{n}", pieces) for n in range(count)]
    return [event for events in zip(*replies, strict=True) for event in events]


@st.composite
def logs(draw):
    return draw(repeated(draw(interleaved([draw(histories(f"r{n}")) for n in range(draw(st.integers(1, 3)))]))))


MOVES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.booleans()), max_size=12)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), MOVES)
def test_two_processes_with_any_batches_restarts_and_interleaving_write_one_list(servers, redis, log, moves):
    namespace = fresh_namespace()
    runs = [Run(buffer_step(servers.redis_url, namespace), log) for _ in range(2)]
    for who, count, restart in moves:
        if restart:
            start = runs[who].step.settled()[TOKENS]
            runs[who] = Run(buffer_step(servers.redis_url, namespace), log, start)
        runs[who].turn(count)
    for run in runs:
        run.finish()
    assert [run.rewinds for run in runs] == [0, 0]
    whole = expected(log)
    assert buffered(redis, namespace, list(whole)) == whole
    for key in redis.scan_iter(f"{namespace}:*", count=1000):
        redis.delete(key)


def test_the_head_can_be_read_before_the_first_token_and_after_the_end(servers, redis, namespace):
    run = Run(buffer_step(servers.redis_url, namespace), reply("r", 3))
    head = keys.head(namespace, "r").decode()
    run.turn(1)
    assert redis.hmget(head, "status", "attempt", "model", "conversation_id", "account_id", "offset") == [
        b"queued",
        b"1",
        b"auto",
        b"c",
        b"a",
        b"0",
    ]
    run.turn(2)
    assert redis.hmget(head, "status", "model") == [b"running", b"model of g"]
    run.finish()
    text_bytes = sum(len(f"r {n}") for n in (1, 2, 3))
    assert redis.hmget(head, "status", "offset", "text_bytes") == [b"completed", b"5", b"%d" % text_bytes]
    assert 0 < redis.pttl(head) <= 600_000


def test_a_buffer_that_outgrew_its_bound_says_so_and_takes_nothing_more(servers, redis, namespace):
    log = reply("r", 30)
    for _ in range(2):
        run = Run(buffer_step(servers.redis_url, namespace, Limits(frames_max=8)), log)
        run.finish()
        assert redis.hget(keys.head(namespace, "r").decode(), "status") == b"cut"
        assert buffered(redis, namespace, ["r"])["r"] == expected(log)["r"][:8]
        assert run.step.settled() == {TOKENS: len(log)}


def test_a_reply_with_very_many_waiting_frames_is_written_whole(servers, redis, namespace):
    log = reply("r", 3_500)
    run = Run(buffer_step(servers.redis_url, namespace), log)
    run.turn(len(log))
    assert buffered(redis, namespace, ["r"]) == expected(log)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=25))
def test_flushing_redis_at_any_moment_loses_and_doubles_nothing(valkey, moves):
    log = woven(3, 12)
    namespace = fresh_namespace()
    run = Run(buffer_step(valkey.url, namespace), log)
    for count, flush in moves:
        run.turn(count)
        if flush:
            valkey.client.flushall()
    run.finish()
    assert buffered(valkey.client, namespace, ["r0", "r1", "r2"]) == expected(log)


def test_flushing_redis_between_two_appends_of_one_call_is_noticed(valkey):
    namespace = fresh_namespace()
    log = woven(3, 300)
    run = Run(buffer_step(valkey.url, namespace), log)
    run.turn(9)
    stop = threading.Event()

    def flush():
        other = Redis.from_url(valkey.url)
        for _ in range(40):
            if stop.wait(0.003):
                return
            other.flushall()

    flusher = threading.Thread(target=flush)
    flusher.start()
    for _ in range(200):
        run.now_ms += 2_500
        run.turn(7)
    stop.set()
    flusher.join()
    run.finish()
    assert run.rewinds > 0
    assert buffered(valkey.client, namespace, ["r0", "r1", "r2"]) == expected(log)


def test_an_ended_reply_is_written_again_when_redis_is_lost_soon_after_its_end(valkey):
    namespace = fresh_namespace()
    log = reply("r", 4)
    run = Run(buffer_step(valkey.url, namespace), log)
    run.finish()
    valkey.client.flushall()
    run.finish()
    assert run.rewinds == 1
    assert buffered(valkey.client, namespace, ["r"]) == expected(log)


def test_a_store_that_came_back_with_older_data_is_noticed(valkey):
    namespace = fresh_namespace()
    log = reply("r", 9)
    run = Run(buffer_step(valkey.url, namespace), log)
    run.turn(4)
    name = keys.marker(namespace, 0).decode()
    old = (valkey.client.hgetall(name), valkey.client.lrange(keys.frames(namespace, "r").decode(), 0, -1))
    run.turn(4)
    valkey.client.hset(name, mapping=old[0])
    valkey.client.ltrim(keys.frames(namespace, "r").decode(), 0, len(old[1]) - 1)
    run.turn(0)
    assert run.rewinds == 1
    run.finish()
    assert buffered(valkey.client, namespace, ["r"]) == expected(log)


# With `everysec` a write may wait in the server for a slow disk, and is gone with it.
ALWAYS_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize("options", [(), ALWAYS_DURABLE], ids=["comes back empty", "comes back as it was"])
def test_killing_redis_is_survived(tmp_path, options):
    server = Valkey(tmp_path, *options)
    server.start()
    namespace = fresh_namespace()
    log = woven(3, 12)
    run = Run(buffer_step(server.url, namespace), log)
    try:
        run.turn(15)
        server.kill()
        run.turn(5)
        assert run.step.trouble
        assert run.step.settled() == {TOKENS: 0}
        server.start()
        run.finish()
        assert buffered(server.client, namespace, ["r0", "r1", "r2"]) == expected(log)
        assert run.rewinds == (0 if options else 1)
    finally:
        server.kill()


def test_a_server_that_cannot_write_is_waited_for(valkey):
    namespace = fresh_namespace()
    log = reply("r", 9)
    run = Run(buffer_step(valkey.url, namespace), log)
    run.turn(4)
    valkey.client.replicaof("127.0.0.1", "1")
    run.turn(4)
    assert "read only" in run.step.trouble
    valkey.client.replicaof("NO", "ONE")
    valkey.client.config_set("maxmemory", 1)
    run.now_ms += 3_000
    run.turn(1)
    assert "maxmemory" in run.step.trouble
    valkey.client.config_set("maxmemory", 0)
    run.finish()
    assert buffered(valkey.client, namespace, ["r"]) == expected(log)


def test_while_redis_is_away_only_so_much_is_taken(valkey, monkeypatch):
    monkeypatch.setattr("projections.buffer.step.PENDING_BYTES_MAX", 2_000)
    log = reply("r", 200)
    run = Run(buffer_step(valkey.url, fresh_namespace()), log)
    valkey.kill()
    while run.step.open_replies() == 0 or run.at < 90:
        try:
            run.turn(5)
        except Busy:
            break
    assert run.at < 60
    with pytest.raises(Busy):
        run.step.submit(arrived(log[run.at : run.at + 1], first=run.at), run.now_ms)


def test_a_reader_that_joins_at_any_time_sees_no_gap_and_nothing_twice(servers, redis, namespace):
    log = woven(1, 400)
    frames = expected(log)["r0"]
    run = Run(buffer_step(servers.redis_url, namespace), log)
    results = []

    def read(after):
        mine = Redis.from_url(servers.redis_url)
        listener = mine.pubsub()
        listener.ssubscribe(keys.live(namespace, "r0").decode())
        found = []
        at = after
        while not (found and parse_frame(found[-1])[1].__class__.__name__ == "Ended"):
            missed = mine.lrange(keys.frames(namespace, "r0").decode(), at, -1)
            found += missed
            at += len(missed)
            message = listener.get_sharded_message(timeout=5)
            while message is not None and message["type"] == "smessage":
                head, _, body = message["data"].partition(b"\n")
                first, last = map(int, head.split(b"-"))
                if first > at + 1:
                    break  # the list has what lies between
                if last > at:
                    parts = [part + b"\n\n" for part in body.split(b"\n\n")[:-1]]
                    found += parts[at + 1 - first :]
                    at = last
                message = listener.get_sharded_message(timeout=0.05)
        listener.close()
        results.append((after, found))

    readers = []
    while run.at < len(log):
        if run.at % 90 == 0:
            readers.append(threading.Thread(target=read, args=(max(0, run.at - 20),)))
            readers[-1].start()
        run.turn(3)
    for reader in readers:
        reader.join(20)
    assert len(results) == len(readers) >= 4
    for after, found in results:
        assert found == frames[after:]


def test_it_works_on_a_cluster_of_several_nodes(tmp_path):
    nodes = []
    try:
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            nodes.append(Valkey(folder, *options))
            nodes[-1].start()
            first = number * 5461
            nodes[-1].client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, 16383 if number == 2 else first + 5460)
            nodes[-1].client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            bus = node.command[-1]
            nodes[0].client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in nodes:
            node.wait_for(lambda info: "cluster_state:ok" in info and "cluster_known_nodes:3" in info)
        namespace = fresh_namespace()
        log = woven(9, 6)
        run = Run(buffer_step(nodes[0].url, namespace), log)
        run.finish()
        assert run.step._store.clustered
        with RedisCluster.from_url(nodes[0].url) as cluster:
            assert buffered(cluster, namespace, [f"r{n}" for n in range(9)]) == expected(log)
        assert all(node.client.dbsize() for node in nodes)
    finally:
        for node in nodes:
            node.kill()
