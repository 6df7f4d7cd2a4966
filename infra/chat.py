"""The conversation of `turnlog chat`: a plain client of the HTTP API, as a user would write one.

A reply is read by its offset: when a connection breaks, reading goes on after the last event seen,
on whatever API process answers. Ctrl-C cancels the reply on the server and keeps what came.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from infra.errors import StackError
from infra.event_stream import StreamEvent, events

TIMEOUT = httpx.Timeout(60.0, connect=2.0)
PAUSE_S = 0.5
TOLD_AFTER_S = 2.0
PATIENCE_S = 60.0
GREETING = (
    "Write a message and press Enter. Ctrl-C cancels a reply, /regenerate asks for another one,\n"
    "/resume reads the last reply again from its start, /quit leaves.\n"
    "(The demo model, SmolLM2-135M, is tiny and answers badly: it shows the way of the data.)"
)


class Waiting:
    """How long the API has said nothing: tells once that it is tried again, and when it is enough."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, pause_for: Callable[[float], object] = time.sleep
    ) -> None:
        self._now_s = now_s
        self._pause_for = pause_for
        self.heard()

    def heard(self) -> None:
        """It said something."""
        self._heard_s = self._now_s()
        self._told = False

    def failed(self, said: str) -> None:
        """A try failed: wait a moment. Raises StackError after a minute of them."""
        silent_s = self._now_s() - self._heard_s
        if silent_s > PATIENCE_S:
            raise StackError(f"{said}; given up after {PATIENCE_S:.0f} s.")
        if silent_s > TOLD_AFTER_S and not self._told:
            self._told = True
            sys.stderr.write(f"[{said}; trying again for a minute, Ctrl-C gives up]\n")
            sys.stderr.flush()
        self._pause_for(PAUSE_S)


@dataclass
class Chat:
    """One conversation with one API. ``reply_id`` is the newest reply; ``waiting`` makes what waits for the API."""

    url: str
    key: str
    model: str = "auto"
    conversation_id: str | None = None
    reply_id: str | None = None
    transport: httpx.BaseTransport | None = None
    waiting: Callable[[], Waiting] = Waiting
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=TIMEOUT,
            transport=self.transport,
        )

    def send(self, content: str) -> str:
        """Send a message; the id of the reply. The same client id in every try: a repeat changes nothing."""
        body: dict[str, Any] = {"client_message_id": uuid.uuid4().hex, "content": content, "model": self.model}
        if self.conversation_id is not None:
            body["conversation_id"] = self.conversation_id
        return self._accepted(self._call("POST", "/v1/messages", body))

    def regenerate(self) -> str:
        """Ask for a sibling of the newest reply; its id."""
        if self.reply_id is None:
            raise StackError("There is no reply yet.")
        body = {"client_message_id": uuid.uuid4().hex, "model": self.model}
        return self._accepted(self._call("POST", f"/v1/messages/{self.reply_id}/regenerate", body))

    def cancel(self, reply_id: str) -> None:
        """Stop a reply; one that has ended stays as it is."""
        self._call("POST", f"/v1/messages/{reply_id}/cancel", {})

    def follow(self, reply_id: str, reader: Reader) -> None:
        """Read a reply to its end, resuming after every break. Raises StackError after a minute without a word."""
        path = f"/v1/messages/{reply_id}/events"
        waiting = self.waiting()
        while not reader.ended:
            try:
                with self.client.stream("GET", path, headers={"Last-Event-ID": str(reader.offset)}) as answer:
                    if answer.status_code >= 500:
                        answer.read()
                        raise httpx.RemoteProtocolError(problem(answer))
                    if answer.status_code != 200:
                        answer.read()
                        raise StackError(problem(answer))
                    for event in events(answer.iter_lines()):
                        waiting.heard()
                        reader.take(event)
                if not reader.ended:
                    time.sleep(PAUSE_S)
            except httpx.TransportError as failure:
                waiting.failed(self._unanswered(failure))

    def _accepted(self, answer: dict[str, Any]) -> str:
        self.conversation_id = answer["conversation_id"]
        self.reply_id = str(answer["reply"]["id"])
        return self.reply_id

    def _unanswered(self, failure: httpx.TransportError) -> str:
        return f"{self.url} does not answer ({str(failure).rstrip('.') or type(failure).__name__})"

    def _call(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A call, repeated while the service is not able; raises StackError with the API's own sentence."""
        waiting = self.waiting()
        while True:
            try:
                answer = self.client.request(method, path, json=body)
                if answer.status_code < 500:
                    break
                said = problem(answer).rstrip(".")
            except httpx.TransportError as failure:
                said = self._unanswered(failure)
            waiting.failed(said)
        if answer.is_error:
            raise StackError(problem(answer))
        return dict(answer.json())


class Reader:
    """Takes the events of one reply and shows them as they come."""

    def __init__(self, *, as_json: bool) -> None:
        self.offset = 0
        self.ended = False
        self._as_json = as_json

    def take(self, event: StreamEvent) -> None:
        """Show one event."""
        self.offset = event.offset
        self.ended = event.kind == "ended"
        if self._as_json:
            write(json.dumps({"id": event.offset, "event": event.kind, "data": event.data}) + "\n")
        else:
            write(shown(event))


def shown(event: StreamEvent) -> str:
    """What a person sees of an event."""
    match event.kind:
        case "delta":
            return str(event.data["text"])
        case "reset":
            return f"\n[starts again: {event.data.get('reason', 'another worker')}]\n"
        case "notice":
            return f"\n[{event.data.get('detail') or event.data.get('code')}]\n"
        case "ended":
            status = event.data["status"]
            error = event.data.get("error")
            if status == "completed":
                return "\n"
            return f"\n[{status}{': ' + str(error.get('detail') or error.get('code')) if error else ''}]\n"
        case _:
            return ""


def problem(answer: httpx.Response) -> str:
    """One sentence from an error answer."""
    try:
        body = answer.json()
        return str(body.get("detail") or body.get("title") or answer.reason_phrase)
    except (ValueError, AttributeError):
        return f"The API answered {answer.status_code} {answer.reason_phrase}."


def converse(chat: Chat, *, as_json: bool) -> None:
    """Read lines and answer them until /quit or the end of the input.

    A refusal is shown at a terminal; in a script, where nobody would see it, it raises StackError.
    """
    if not as_json:
        write(GREETING + "\n")
    while True:
        try:
            line = input("" if as_json or not sys.stdin.isatty() else "\n> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            write("\n")
            return
        if line == "/quit":
            return
        if line:
            try:
                _answer(chat, line, as_json=as_json)
            except StackError as failure:
                if not sys.stdin.isatty():
                    raise
                write(f"[{failure}]\n")
            except KeyboardInterrupt:
                write("\n")


def _answer(chat: Chat, line: str, *, as_json: bool) -> None:
    match line:
        case "/regenerate":
            reply_id = chat.regenerate()
        case "/resume":
            if chat.reply_id is None:
                raise StackError("There is no reply yet.")
            reply_id = chat.reply_id
        case _ if line.startswith("/"):
            raise StackError(f"{line} is no command: /regenerate, /resume, /quit.")
        case _:
            reply_id = chat.send(line)
    reader = Reader(as_json=as_json)
    try:
        chat.follow(reply_id, reader)
    except KeyboardInterrupt:
        chat.cancel(reply_id)
        chat.follow(reply_id, reader)


def write(text: str) -> None:
    """Show at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
