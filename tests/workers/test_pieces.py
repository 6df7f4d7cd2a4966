"""Bursts of pieces: in which order they leave."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from inference_workers.pieces import Burst, Pieces
from schemas.events import GenerationRequested
from schemas.examples import EXAMPLES
from streams.log.memory import MemoryLog
from streams.log.steps import Appended, NotAppended, Output, Writer

REQUEST = EXAMPLES[GenerationRequested]


class Noting:
    """A writer that notes in which partition each record ended."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.partitions: list[int] = []
        self.noted = asyncio.Event()

    def append(self, output: Output, failed: Callable[[NotAppended], None] | None = None) -> Appended:
        appended = self._writer.append(output, failed)
        self.partitions.append(appended.result(1).partition)
        self.noted.set()
        return appended


async def test_the_pieces_of_a_burst_leave_partition_by_partition() -> None:
    log = MemoryLog({"tokens": 4})
    writer = Noting(log.writer("worker"))
    burst = Burst()
    generations = []
    for number in range(16):
        request = replace(REQUEST, generation_id=f"gen_{number}", conversation_id=f"conv_{number}")
        generations.append(Pieces(writer, request, 4, lambda: None))
    for text in ("first ", "second "):
        writer.partitions.clear()
        for pieces in generations:
            pieces.add(text, 1)
            burst.offer(pieces)
        async with asyncio.timeout(5):
            while len(writer.partitions) < len(generations):
                writer.noted.clear()
                await writer.noted.wait()
    assert writer.partitions == sorted(writer.partitions)
    assert sorted(writer.partitions) == sorted(pieces.partition for pieces in generations)
    assert len(set(writer.partitions)) == 4
