"""All streams of a process together: what is done at one time is bounded, and they end share by share."""

import asyncio
import itertools

import pytest

from api.capacity import Capacity
from api.metrics import Metrics
from api.open_streams import STOP_SHARE_MIN, OpenStreams
from api.reading import Patience
from api.sse import RETRY_MS, EventStream, retry_ms
from api.stores import PageLimit

PATIENCE = Patience(
    heartbeat_s=15.0, send_timeout_s=30.0, outage_s=30.0, idle_s=900.0, page=PageLimit(frames=7, bytes=10_000)
)


class Silent:
    """A source without events, which notes when it was asked for a heartbeat."""

    def __init__(self) -> None:
        self.beats = 0
        self.stopped = False

    async def next(self) -> bytes | None:
        return None

    def beat(self) -> None:
        self.beats += 1

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None: ...


def opened(count: int) -> tuple[OpenStreams, list[Silent]]:
    """Streams that all fell silent at the time 0."""
    streams = OpenStreams(PATIENCE, Metrics(), count)
    sources = [Silent() for _ in range(count)]
    for source in sources:
        streams.add(EventStream(source, streams))
    return streams, sources


def test_heartbeats_of_ten_thousand_that_fell_silent_together_are_spread() -> None:
    streams, sources = opened(10_000)
    tick_s = streams.lap_s / 20
    woken = [streams.look(number * tick_s) for number in range(round(PATIENCE.heartbeat_s / tick_s) + 1)]
    assert all(source.beats for source in sources), "everybody within the declared time"
    assert max(source.beats for source in sources) <= 2
    even = 10_000 * tick_s / PATIENCE.heartbeat_s
    assert max(woken) <= 2 * even + 1, "and never more than twice the even share at a time"


def test_a_single_stream_beats_in_time() -> None:
    streams, [source] = opened(1)
    for number in range(round(PATIENCE.heartbeat_s / streams.lap_s)):
        streams.look(number * streams.lap_s)
    assert source.beats >= 1


async def test_at_a_stop_streams_end_share_by_share_within_half_of_the_time() -> None:
    streams, sources = opened(1_000)
    stopping = asyncio.ensure_future(streams.stop(0.4))
    await asyncio.sleep(0)
    first = sum(source.stopped for source in sources)
    assert STOP_SHARE_MIN <= first < 1_000
    await stopping
    assert all(source.stopped for source in sources)


async def test_a_stop_of_few_streams_is_at_once_and_waits_for_no_longer_than_it_takes() -> None:
    streams, sources = opened(STOP_SHARE_MIN)
    stopping = asyncio.ensure_future(streams.stop(60.0))
    await asyncio.sleep(0)
    assert all(source.stopped for source in sources)
    for stream in list(streams._open):
        streams.remove(stream)
    await asyncio.wait_for(stopping, 5)


def test_clients_are_told_to_come_back_at_different_times() -> None:
    streams = OpenStreams(PATIENCE, Metrics(), 1)
    least, most = RETRY_MS
    told = sorted(retry_ms(streams.phase()) for _ in range(1_000))
    assert least <= told[0] <= told[-1] <= most
    gaps = [later - earlier for earlier, later in itertools.pairwise(told)]
    assert max(gaps) <= 4 * (most - least) / 1_000


@pytest.mark.parametrize(
    ("streams_max", "files_max", "streams", "connections"),
    [
        (20_000, 1_048_576, 20_000, 22_000),
        (20_000, 20_000, 17_770, 19_744),
        (10_000, 20_000, 10_000, 12_000),
        (20_000, 1_024, 692, 768),
        (20_000, 100, 1, 2),
    ],
)
def test_no_more_streams_are_taken_than_files_can_be_opened(
    streams_max: int, files_max: int, streams: int, connections: int
) -> None:
    assert Capacity.of(streams_max, files_max) == Capacity(streams, connections)
