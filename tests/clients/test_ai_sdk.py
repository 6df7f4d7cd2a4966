"""The Vercel AI SDK's chat, versions 6 and 7, on the real product: `DefaultChatTransport` and `AbstractChat`.

And the golden transcripts of `tests/api`, as each version of the SDK reads them.
"""

import json
import os
import signal
import uuid
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import quote

import pytest
from system.product import Product, eventually

from clients.cable import Cable
from clients.programs import HERE, Program, Said, node, run_node

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

VERSIONS = pytest.mark.parametrize("version", ["6", "7"])


class Page:
    """A page with a chat; the chat's id has a character that a path must escape."""

    def __init__(self, product: Product, url: str, version: str, *, resets: bool = False, chat: str = "") -> None:
        self.product = product
        self.chat = chat or f"chat/{uuid.uuid4().hex}"
        self.path = f"/ai-sdk/{quote(self.chat, safe='')}"
        arguments = [version, self.chat, *(["resets"] if resets else [])]
        env = {"TURNLOG_URL": url, "TURNLOG_API_KEY": product.api_key}
        self.program: Program = node("ai_sdk.mjs", *arguments, env=env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.end()

    @property
    def said(self) -> list[Said]:
        return self.program.said

    def begin(self, do: str, **how: Any) -> Callable[[], Said]:
        """Start a command; what it returns waits for its end."""
        before = len(self._done())
        self.program.tell(do=do, **how)
        return lambda: self.program.until(f"{do} is done", lambda _: self._done()[before:])[0]

    def do(self, what: str, **how: Any) -> Said:
        """A command to its end."""
        return self.begin(what, **how)()

    def send(self, script: dict[str, Any] | str, **how: Any) -> Said:
        return self.do("send", text=written(script), **how)

    def shows(self, words: int) -> str:
        """Wait until the newest message has so many words, and its id."""
        found = self.program.until(
            f"{words} words", lambda said: [s["id"] for s in said if len(s.get("shown", "").split()) >= words]
        )
        return str(found[-1])

    def post(self, last: str) -> int:
        """A call of the page's own, such as its button to stop: the status."""
        return self.product.client().http.post(f"{self.path}/{last}").status_code

    def _done(self) -> list[Said]:
        return [said for said in self.said if "done" in said]


def written(script: dict[str, Any] | str) -> str:
    return script if isinstance(script, str) else json.dumps(script)


def newest(done: Said) -> dict[str, Any]:
    """The newest message of the page, which has one text of the service's."""
    assert done["error"] is None, done
    assert done["status"] == "ready"
    message: dict[str, Any] = done["messages"][-1]
    assert message["role"] == "assistant"
    return message


@VERSIONS
def test_a_conversation_is_the_same_here_and_there(product: Product, version: str) -> None:
    native = product.client()
    with Page(product, product.url, version) as page:
        first = newest(page.send({"chunks": 20, "every_ms": 5}))
        stored = native.message(first["id"])
        assert first["text"] == stored["text"]
        assert first["metadata"]["conversationId"] == stored["conversation_id"]
        assert first["metadata"]["usage"]["outputTokens"] == stored["usage"]["output_tokens"] == 20
        second = newest(page.send("and more"))
        told = native.message(second["id"])
        assert second["text"] == told["text"]
        assert told["conversation_id"] == stored["conversation_id"]
        branch = native.get(f"/v1/conversations/{stored['conversation_id']}")["branch"]
        assert [branch[1], branch[3]] == [first["id"], second["id"]]
        assert {
            "finished": {"isAbort": False, "isError": False, "isDisconnect": False, "finishReason": "stop"}
        } in page.said


@VERSIONS
def test_a_lost_connection_is_told_and_the_whole_message_comes_again(
    product: Product, cable: Cable, version: str
) -> None:
    with Page(product, cable.url, version) as page:
        cable.cut_at(b"word20")
        sending = page.begin("send", text=written({"chunks": 150, "every_ms": 20}))
        cut = sending()
        assert cut["status"] == "error", cut
        assert cable.cuts == 1
        partial = cut["messages"][-1]
        message = newest(page.do("resume"))
        assert message["id"] == partial["id"]
        assert message["text"] == product.client().message(message["id"])["text"]
        assert message["text"].startswith(partial["text"])
        assert len(message["text"].split()) == 150


@VERSIONS
def test_a_page_that_was_reloaded_shows_the_reply_that_runs(product: Product, version: str) -> None:
    with Page(product, product.url, version) as page:
        page.begin("send", text=written({"chunks": 400, "every_ms": 20}))
        reply_id = page.shows(5)
    with Page(product, product.url, version, chat=page.chat) as reloaded:
        message = newest(reloaded.do("resume"))
        assert (message["id"], len(message["text"].split())) == (reply_id, 400)
        again = reloaded.do("resume")
        assert (again["status"], again["error"], len(again["messages"])) == ("ready", None, 1), "nothing runs: 204"


@VERSIONS
def test_leaving_cancels_nothing_and_stop_does(product: Product, version: str) -> None:
    native = product.client()
    with Page(product, product.url, version) as page:
        sending = page.begin("send", text=written({"chunks": 2000, "every_ms": 20}))
        reply_id = page.shows(3)
        page.do("leave")
        assert sending()["status"] == "ready"
        assert native.message(reply_id)["status"] == "running"
        resuming = page.begin("resume")
        page.shows(10)
        assert page.post("stop") == 202
        message = newest(resuming())
        stored = native.message(reply_id)
        assert (stored["status"], stored["text"]) == ("cancelled", message["text"])
        assert message["metadata"]["usage"]["outputTokens"] == stored["usage"]["output_tokens"]
        assert page.post("stop") == 204


@VERSIONS
def test_regenerated_and_edited_messages_are_siblings(product: Product, version: str) -> None:
    native = product.client()
    with Page(product, product.url, version) as page:
        done = page.send("one")
        first, user_id = newest(done), done["messages"][0]["id"]
        again = newest(page.do("regenerate"))
        by_id = newest(page.do("regenerate", messageId=again["id"]))
        by_question = newest(page.do("regenerate", messageId=user_id))
        replies = [first["id"], again["id"], by_id["id"], by_question["id"]]
        assert native.message(first["id"])["siblings"] == replies
        follow = newest(page.send("two"))
        asked = native.message(native.message(follow["id"])["parent_id"])
        assert asked["parent_id"] == by_question["id"]
        edited = page.send("one, edited", messageId=user_id)
        assert len(edited["messages"]) == 2
        reply = native.message(newest(edited)["id"])
        question = native.message(reply["parent_id"])
        assert (question["text"], question["parent_id"]) == ("one, edited", None)
        assert question["siblings"][0] == native.message(first["id"])["parent_id"]


@VERSIONS
def test_a_failed_reply_is_an_error_and_can_be_asked_for_again(product: Product, version: str) -> None:
    with Page(product, product.url, version) as page:
        failed = page.send({"chunks": 20, "every_ms": 1, "fail_at": 10})
        assert failed["status"] == "error"
        assert "engine_error" in failed["error"]
        reply = product.client().message(failed["messages"][-1]["id"])
        assert (reply["status"], reply["text"]) == ("failed", failed["messages"][-1]["text"])
        repeated = page.do("regenerate")
        assert "engine_error" in repeated["error"]
        siblings = product.client().message(repeated["messages"][-1]["id"])["siblings"]
        assert siblings[0] == reply["id"]
        assert len(siblings) == 2


@VERSIONS
def test_a_refused_request_is_told(product: Product, version: str) -> None:
    with Page(product, product.url, version) as page:
        told = page.send("x" * 262_145)
        assert told["status"] == "error"
        assert "must have at most 262144 bytes" in told["error"]
        assert newest(page.do("send", text="shorter", messageId=told["messages"][0]["id"]))["text"]


@VERSIONS
def test_a_silent_stream_is_kept(product: Product, version: str) -> None:
    with Page(product, product.url, version) as page:
        message = newest(page.send({"chunks": 2, "first_after_ms": 3000, "every_ms": 10}))
        assert message["text"] == product.client().message(message["id"])["text"]


def test_a_reply_that_begins_again_goes_on_in_version_7(product: Product) -> None:
    with Page(product, product.url, "7", resets=True) as page, Page(product, product.url, "6") as old:
        script = {"chunks": 500, "every_ms": 20}
        parts = product.parts()
        sending, also = page.begin("send", text=written(script)), old.begin("send", text=written(script))
        for shown in (page, old):
            shown.shows(5)
        for name in ("worker-0", "worker-1"):
            os.kill(int(parts[name]["pid"]), signal.SIGKILL)
        message = newest(sending())
        stored = product.client().message(message["id"])
        assert stored["attempt"] > 1
        assert (message["text"], len(message["text"].split())) == (stored["text"], 500)
        told = also()
        assert told["status"] == "error"
        assert "began again on another worker" in told["error"]
        lost = told["messages"][-1]["id"]
        eventually("its end", lambda: product.client().message(lost)["status"] == "completed")
    product.wait_ready()


GOLDEN = HERE.parent / "api" / "golden"

SAID = ("Rivers flow.", "ready", None)
FAILED = "engine_error: The engine failed."
RESTARTED = "The reply began again on another worker; what was sent of it is void. Read it again by its id."
UNFINISHED = "The stream broke before the reply's end; the reply goes on. Read it again by its id."


@VERSIONS
def test_every_transcript_is_understood(version: str) -> None:
    told = run_node("ai_sdk_transcripts.mjs", version, str(GOLDEN / "ai_sdk"))
    found = {one["history"]: (one["text"], one["status"], one["error"]) for one in told}
    assert found.pop("unicode")[0].startswith("Grüße 👩‍👩‍👧 \u2028\u2029\x85 \x00\x1b\r\n\ndata: [DONE]")
    assert found == {
        "completed": SAID,
        "stored": SAID,
        "length": SAID,
        "notice": SAID,
        "reset_before_text": SAID,
        "cancelled_running": SAID,
        "cancelled_queued": ("", "ready", None),
        "empty": ("", "ready", None),
        "failed": ("Rivers flow.", "error", FAILED),
        "refused": ("", "error", "prompt_too_large: The prompt is too large."),
        "no_capacity": ("", "error", "queue_full: The queue is full."),
        "reset_after_text": ("Riv", "error", RESTARTED),
        "broken": ("Rivers flow.", "error", UNFINISHED),
    }
    (notice,) = [one for one in told if one["history"] == "notice"]
    assert [part["data"]["code"] for part in notice["data"]] == ["shortened"]
    assert notice["kinds"] == ["step-start", "text"], "a notice is no part of the message"
    (length,) = [one for one in told if one["history"] == "length"]
    assert length["finishReason"] == "length"
    assert length["metadata"]["usage"]["totalTokens"] == 11


def test_version_7_takes_a_reply_that_begins_again_and_version_6_does_not() -> None:
    by_version = {
        version: {one["history"]: one for one in run_node("ai_sdk_transcripts.mjs", version, str(GOLDEN / "ai_sdk_7"))}
        for version in ("6", "7")
    }
    seven = by_version["7"]["reset_after_text"]
    assert (seven["text"], seven["status"]) == ("Rivers flow.", "ready")
    assert seven["kinds"] == ["step-start", "text"]
    assert by_version["6"]["reset_after_text"]["status"] == "error"
