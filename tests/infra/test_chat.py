"""The chat as a client: what it sends, and how it reads on after a break."""

import io
import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from infra.chat import PATIENCE_S, TOLD_AFTER_S, Chat, Reader, Waiting, converse, problem, shown
from infra.cli import app
from infra.cli_chat import same_machine
from infra.errors import StackError
from infra.event_stream import StreamEvent


def frame(offset: int, kind: str, data: dict[str, object]) -> str:
    return f"id: {offset}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


class Service:
    """A small service that breaks every stream after two events, and remembers what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.resumed_after: list[int] = []
        self.frames = [
            frame(1, "started", {"attempt": 1}),
            frame(2, "delta", {"text": "Hello "}),
            frame(3, "delta", {"text": "there"}),
            frame(4, "ended", {"status": "completed"}),
        ]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.bodies.append(json.loads(request.content))
            return httpx.Response(202, json={"conversation_id": "conv_1", "reply": {"id": f"rep_{len(self.bodies)}"}})
        after = int(request.headers["Last-Event-ID"])
        self.resumed_after.append(after)
        return httpx.Response(200, text="".join(self.frames[after : after + 2]))


def chat_with(service: object) -> Chat:
    return Chat(url="http://test", key="k", transport=httpx.MockTransport(service))  # type: ignore[arg-type]


def test_a_broken_stream_is_read_on_after_the_last_event(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service()
    chat = chat_with(service)
    chat.follow(chat.send("Hi"), Reader(as_json=False))
    assert service.resumed_after == [0, 2]
    assert capsys.readouterr().out == "Hello there\n"


def test_the_second_message_goes_into_the_same_conversation() -> None:
    service = Service()
    chat = chat_with(service)
    chat.send("one")
    chat.send("two")
    first, second = service.bodies
    assert "conversation_id" not in first
    assert second["conversation_id"] == "conv_1"
    assert first["client_message_id"] != second["client_message_id"]


def test_a_refusal_is_the_sentence_of_the_service() -> None:
    chat = chat_with(lambda _: httpx.Response(401, json={"title": "Unauthorized", "detail": "The key opens nothing."}))
    with pytest.raises(StackError, match="The key opens nothing"):
        chat.send("Hi")


def test_json_lines_hold_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    chat = chat_with(Service())
    chat.follow(chat.send("Hi"), Reader(as_json=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["started", "delta", "delta", "ended"]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (StreamEvent(3, "reset", {"attempt": 2, "reason": "worker died"}), "starts again: worker died"),
        (StreamEvent(9, "ended", {"status": "failed", "error": {"detail": "no worker"}}), "failed: no worker"),
        (StreamEvent(2, "notice", {"code": "shortened", "detail": "Shorter today."}), "Shorter today."),
    ],
)
def test_what_is_not_text_is_shown_in_brackets(event: StreamEvent, text: str) -> None:
    assert text in shown(event)
    assert "[" in shown(event)


def test_an_error_that_is_no_problem_document_has_its_status() -> None:
    assert "502" in problem(httpx.Response(502, text="<html>"))


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def test_an_api_that_does_not_answer_is_told_once_early_and_then_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()

    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    chat = chat_with(refuse)
    chat.waiting = lambda: Waiting(lambda: clock.now_s, clock.pause)
    with pytest.raises(StackError, match=r"http://test does not answer .*; given up after 60 s"):
        chat.send("Hi")
    assert capsys.readouterr().err.count("trying again") == 1
    assert clock.now_s > PATIENCE_S


def test_the_first_word_about_silence_comes_after_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    waiting = Waiting(lambda: clock.now_s, clock.pause)
    while not capsys.readouterr().err:
        waiting.failed("nothing")
    assert TOLD_AFTER_S < clock.now_s < TOLD_AFTER_S + 2
    waiting.heard()
    waiting.failed("nothing")
    assert capsys.readouterr().err == ""


def test_in_a_script_a_refusal_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    chat = chat_with(lambda _: httpx.Response(401, json={"detail": "The key opens nothing."}))
    with pytest.raises(StackError, match="The key opens nothing"):
        converse(chat, as_json=True)


def test_the_demo_key_is_not_sent_to_another_machine(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stack.json").write_text('{"url": "http://127.0.0.1:8080", "parts": []}')
    nothing = {"TURNLOG_API_KEY": "", "TURNLOG_KEY": ""}
    done = CliRunner().invoke(app, ["chat", "--url", "http://example.com", "--data", str(tmp_path)], env=nothing)
    assert isinstance(done.exception, StackError)
    assert "--key" in str(done.exception)


def test_this_machine_has_several_names() -> None:
    own = "http://10.0.0.7:8080"
    assert all(same_machine(url, own) for url in ("http://localhost:8081", "http://127.0.0.1", "http://10.0.0.7:8081"))
    assert not same_machine("https://127.0.0.1.example.com", own)
