"""What an upstream's bytes say: events, chunks, errors; and what leaves the house in a request."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_workers.engine import (
    ContextTooLong,
    EngineOverloaded,
    GenerationRequest,
    Interrupted,
    InvalidRequest,
)
from inference_workers.engines import event_stream
from inference_workers.engines.chat_completions import (
    Characters,
    Dialect,
    ErrorInside,
    Malformed,
    Part,
    PriorityMode,
    Tokens,
    body,
    finish_of,
    part_of,
    priority_of,
    salt_of,
)
from inference_workers.engines.event_stream import EventReader, TooLarge
from inference_workers.engines.failures import (
    MESSAGE_CHARS_MAX,
    Failure,
    Source,
    error_of,
    error_of_all,
    of_object,
    of_response,
    retry_after_s,
)
from schemas.values import PromptMessage

SOURCE = Source(name="north", key="my-secret-key")


def events(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    reader = EventReader()
    return [found for piece in pieces for found in reader.feed(piece)]


def test_events_are_read_as_the_standard_says() -> None:
    told = "\ufeff: hello\ndata: a\ndata:b\r\n\r\nevent: error\rdata:  c\r\r"
    told += "id: 7\nretry: 1\n\ndata\n\ndata: é\n\ndata: cut\n"
    assert events([told.encode()]) == [(b"", b"a\nb"), (b"error", b" c"), (b"", b""), (b"", "é".encode())]


lines = st.sampled_from(["data: é🦊", "data:", ": hb", "event: x", "data: [DONE]", "id: 1", "", "", "nonsense"])
ends = st.sampled_from(["\n", "\r\n", "\r"])


@given(st.lists(st.tuples(lines, ends)), st.lists(st.integers(0, 200)))
def test_however_the_bytes_are_cut_the_events_are_the_same(told: list[tuple[str, str]], cuts: list[int]) -> None:
    data = "".join(line + end for line, end in told).encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert events(pieces) == events([data]) == events([data[at : at + 1] for at in range(len(data))])


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "EVENT_BYTES_MAX", 100)
    with pytest.raises(TooLarge):
        events([b"data: x", b"x" * 60, b"\ndata: ", b"x" * 60])


def part(told: object) -> Part:
    return part_of(b"", json.dumps(told).encode())


def choice(delta: dict[str, object], **members: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta} | members]}


def test_a_chunk_says_its_text_end_and_usage() -> None:
    assert part(choice({"content": "a"}, finish_reason=None)) == Part(text="a")
    assert part(choice({"role": "assistant", "content": None})) == Part()
    assert part(choice({}, finish_reason="length")) == Part(finish="length")
    assert part({"choices": [], "usage": None}) == Part()
    counted = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 12}}
    assert part({"choices": [], "usage": counted}).tokens == Tokens(prompt=9, cached=9, output=4)
    assert part({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 2}}).tokens == Tokens(
        prompt=9, cached=2, output=4
    )
    for strange in ({"prompt_tokens": None, "completion_tokens": None}, "x", {"prompt_tokens": -1}, [], 7):
        assert part({"usage": strange}).tokens is None
    assert part({"usage": {"prompt_tokens": 9.0, "completion_tokens": 4}}).tokens == Tokens(
        prompt=9, cached=0, output=4
    )


def test_thinking_is_seen_and_not_shown() -> None:
    for name in ("reasoning_content", "reasoning"):
        assert part(choice({name: "hm"})) == Part(thought=True)
    listed = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Yes"}]
    assert part(choice({"content": listed})).text == "Yes"


def test_only_the_first_choice_counts() -> None:
    assert part({"choices": [{"index": 1, "delta": {"content": "b"}}]}) == Part()


@pytest.mark.parametrize("data", [b"{", b"[]", b"null", b"7", b'{"choices": 7}', b'"x', b"\xff"])
def test_what_is_no_chunk_is_told_as_such(data: bytes) -> None:
    with pytest.raises(Malformed):
        part_of(b"", data)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (b"", {"error": {"message": "m"}}),
        (b"", {"object": "error", "message": "m", "code": 400}),
        (b"error", {"message": "m"}),
    ],
)
def test_an_error_object_is_an_error(kind: bytes, told: object) -> None:
    with pytest.raises(ErrorInside):
        part_of(kind, json.dumps(told).encode())


def test_characters_that_were_split_into_surrogates_are_put_together() -> None:
    halves = [
        part_of(b"", rb'{"choices": [{"delta": {"content": "%s"}}]}' % half).text for half in (rb"a\ud83e", rb"\udd8ab")
    ]
    characters = Characters()
    assert [characters.add(half) for half in halves] == ["a", "🦊b"]
    assert characters.add("x\ud83e") == "x"
    assert characters.rest() == "�"


@given(st.text(), st.lists(st.integers(0, 60)))
def test_text_that_is_cut_between_utf_16_units_comes_out_whole(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le")
    edges = sorted({0, len(units), *(2 * cut for cut in cuts if 2 * cut < len(units))})
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(edges)]
    characters = Characters()
    assert "".join(characters.add(piece) for piece in pieces) + characters.rest() == text


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("LENGTH", "length"),
        ("max_tokens", "length"),
        ("content_filter", "filtered"),
        ("tool_calls", "tool"),
        ("abort", "aborted"),
        ("because", "unknown"),
    ],
)
def test_finish_reasons_are_mapped_and_an_unknown_one_is_no_success(word: str, meaning: str) -> None:
    assert finish_of(word) == meaning


REQUEST = GenerationRequest(
    id="gen_private",
    messages=(PromptMessage(role="user", content="hello"),),
    max_tokens=5,
    top_k=7,
    seed=2**40 + 3,
    stop=("a", "b", "c", "d", "e"),
    cache_salt="acct_private",
    priority=1.0,
)


def test_a_request_holds_what_the_upstream_takes_and_nothing_of_ours() -> None:
    plain = body(REQUEST, Dialect(model="m"), "key")
    assert plain == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 3,
        "stop": ["a", "b", "c", "d"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    everything = Dialect(
        model="m",
        max_tokens_as="max_completion_tokens",
        top_k=True,
        cache_salt=True,
        priority="low_first",
        usage="each",
    )
    full = body(REQUEST, everything, "key")
    assert full["max_completion_tokens"] == 5
    assert "max_tokens" not in full
    assert (full["top_k"], full["priority"]) == (7, 0)
    assert full["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "private" not in json.dumps(full)
    bare = body(REQUEST, Dialect(model="m", sampling=False, usage="no", stop_max=0), "key")
    assert set(bare) == {"model", "messages", "max_tokens", "stream"}


@pytest.mark.parametrize(
    ("mode", "sent"),
    [("low_first", [100, 75, 50, 0]), ("high_first", [0, 25, 50, 100]), ("fraction", [0.0, 0.25, 0.5, 1.0])],
)
def test_priorities_are_sent_as_the_upstream_orders_them(mode: PriorityMode, sent: list[float]) -> None:
    assert [priority_of(priority, mode) for priority in (-1.0, 0.25, 0.5, 7.0)] == sent


def test_salts_are_equal_for_equal_accounts_at_one_provider_only() -> None:
    assert salt_of("acct", "key") == salt_of("acct", "key")
    assert len({salt_of("acct", "key"), salt_of("other", "key"), salt_of("acct", "other key")}) == 3


def response(status: int, told: object = None, **headers: str) -> Failure:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return of_response(SOURCE, status, named, json.dumps(told).encode(), 1000.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "request"),
        (401, "denied"),
        (403, "denied"),
        (404, "absent"),
        (405, "absent"),
        (302, "absent"),
        (408, "broken"),
        (409, "broken"),
        (413, "request"),
        (422, "request"),
        (429, "busy"),
        (500, "broken"),
        (502, "broken"),
        (503, "busy"),
        (529, "busy"),
    ],
)
def test_a_status_has_its_kind(status: int, kind: str) -> None:
    assert response(status).kind == kind


def test_a_quota_that_is_used_up_is_no_passing_limit() -> None:
    assert response(429, {"error": {"code": "insufficient_quota"}}).kind == "denied"
    assert response(429, x_should_retry="false").kind == "denied"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The input (150000 tokens) is longer than the model's context length (128000 tokens).",
        "Requested token count exceeds the model's maximum context length of 8192 tokens.",
        "The sum of prompt length (4000) and max_tokens (2048) should not exceed max_seq_len (4096)",
        "prompt is too long: 150000 tokens > 128000 maximum",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    ],
)
def test_each_server_s_words_for_too_long_are_known(message: str) -> None:
    assert isinstance(error_of(response(400, {"error": {"message": message}}), begun=False), ContextTooLong)
    assert isinstance(error_of(of_object(SOURCE, {"message": message}), begun=False), ContextTooLong)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"error": {"message": "no", "code": "bad"}}, "north: HTTP 422 bad: no"),
        (
            {"object": "error", "message": "no", "type": "BadRequestError", "code": 400},
            "north: HTTP 422 badrequesterror: no",
        ),
        ({"error": "no"}, "north: HTTP 422: no"),
        ([{"error": {"message": "no"}}], "north: HTTP 422: no"),
        ({"detail": [{"loc": ["x"]}]}, 'north: HTTP 422: [{"loc": ["x"]}]'),
        ("no", "north: HTTP 422: no"),
    ],
)
def test_a_failure_keeps_its_cause(told: object, text: str) -> None:
    assert response(422, told).text == text


def test_a_failure_tells_the_provider_s_id_of_the_request() -> None:
    assert response(500, {"error": "x"}, x_request_id="req_1").text == "north: HTTP 500: x (request req_1)"


@given(st.text(), st.text())
def test_no_failure_tells_a_key_or_a_novel(before: str, after: str) -> None:
    told = f"{before}my-secret-key{after} Bearer abc.def sk-proj-abcdefgh12345"
    for failure in (response(500, {"error": {"message": told, "code": told}}), of_object(SOURCE, {"message": told})):
        assert "my-secret-key" not in failure.text
        assert "abc.def" not in failure.text
        assert "abcdefgh12345" not in failure.text
        assert len(failure.text) <= MESSAGE_CHARS_MAX + 60
        assert failure.text.isprintable()


@pytest.mark.parametrize(
    ("headers", "wanted_s"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e99"}, 3600.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:17:00 GMT"}, 20.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_bounds(headers: dict[str, str], wanted_s: float | None) -> None:
    assert retry_after_s(headers, 1000.0) == wanted_s


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"error": {"message": "m", "code": 400}}, "request"),
        ({"error": {"message": "m", "code": 429}}, "busy"),
        ({"error": {"message": "m", "code": "404"}}, "absent"),
        ({"error": {"message": "m", "code": 500}}, "broken"),
        ({"error": {"message": "m", "type": "overloaded_error"}}, "busy"),
        ({"error": {"message": "m", "type": "BadRequestError"}}, "request"),
        ({"error": "m"}, "broken"),
        ("m", "broken"),
    ],
)
def test_an_error_inside_a_stream_has_its_kind(told: object, kind: str) -> None:
    assert of_object(SOURCE, told).kind == kind


def test_what_ends_a_generation_when_nobody_has_answered() -> None:
    busy, broken, absent, denied = response(429), response(500), response(404), response(401)
    assert isinstance(error_of_all([busy, busy], []), EngineOverloaded)
    assert isinstance(error_of_all([], ["north"]), EngineOverloaded)
    assert isinstance(error_of_all([busy], ["south"]), EngineOverloaded)
    assert isinstance(error_of_all([busy, broken], []), Interrupted)
    assert isinstance(error_of_all([denied], []), Interrupted)
    assert isinstance(error_of_all([absent], []), InvalidRequest)
    assert isinstance(error_of_all([absent], ["south"]), Interrupted)
    assert "south" in str(error_of_all([busy], ["south"]))


def test_after_the_first_token_a_failure_interrupts() -> None:
    for status in (404, 429, 500):
        assert isinstance(error_of(response(status), begun=True), Interrupted)
    assert isinstance(error_of(response(400), begun=True), InvalidRequest)
