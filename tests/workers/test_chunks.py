"""What an engine has fed and counted is read, also after the generation was closed."""

from hypothesis import given
from hypothesis import strategies as st

from inference_workers.chunks import ChunkStream


async def _nothing() -> None:
    return


async def test_what_was_fed_before_a_close_is_read_after_it() -> None:
    stream = ChunkStream(_nothing)
    stream.feed("one", 1)
    stream.feed(" two", 1)
    await stream.aclose()
    stream.feed(" three", 1)
    chunks = [chunk async for chunk in stream]
    assert [(chunk.text, chunk.tokens, chunk.finish) for chunk in chunks] == [("one two", 2, None)]
    assert stream.usage.output_tokens == 2


@given(st.lists(st.integers(min_value=0, max_value=50)))
def test_tokens_that_an_engine_tells_again_count_once(totals: list[int]) -> None:
    stream = ChunkStream(_nothing)
    assert sum(stream.unheard(total) for total in totals) == max(totals, default=0)
