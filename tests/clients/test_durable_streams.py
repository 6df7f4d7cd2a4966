"""`@durable-streams/client` reads replies and conversations of the real product."""

from pathlib import Path

import pytest
from system.product import Product, eventually

from clients.cable import Cable
from clients.documentation import written
from clients.heard import end_of, events_of, reached, text_of
from clients.programs import Said, node, run_node

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PROGRAM = "durable_streams.mjs"
LIVE = pytest.mark.parametrize("live", ["sse", "long-poll"])


@pytest.fixture
def through(environment: dict[str, str], cable: Cable) -> dict[str, str]:
    """The environment of a program that is at the other end of the cable."""
    return environment | {"TURNLOG_URL": cable.url}


def final(said: list[Said]) -> Said:
    """How the stream stood when the client was done with it."""
    (found,) = [one for one in said if one.get("final")]
    return found


def path_of(reply_id: str) -> str:
    return f"/durable/messages/{reply_id}"


def test_the_program_of_the_page(product: Product, through: dict[str, str], cable: Cable, tmp_path: Path) -> None:
    folder = written(tmp_path)
    cable.cut_at(b'"offset":20,"type":"del')
    (said,) = run_node(folder / "durable_streams.mjs", '{"chunks": 60, "every_ms": 20}', env=through)
    stored = product.client().message(said["id"])
    assert said == {name: stored[name] for name in ("id", "text", "status", "usage")}
    assert (stored["status"], cable.cuts) == ("completed", 1)


@LIVE
def test_a_reply_is_followed_to_its_end_and_the_end_is_known(
    product: Product, environment: dict[str, str], live: str
) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 40, "every_ms": 20})["reply"]["id"]
    said = run_node(PROGRAM, path_of(reply_id), live, env=environment)
    assert text_of(said) == client.message(reply_id)["text"]
    end = end_of(said)
    assert end is not None
    assert end["status"] == "completed"
    assert final(said) == {"final": True, "closed": True, "offset": f"{len(events_of(said)):016d}"}


@LIVE
def test_a_lost_connection_is_made_good_exactly(
    product: Product, through: dict[str, str], cable: Cable, live: str
) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 60, "every_ms": 20})["reply"]["id"]
    cable.cut_at(b'"offset":20,"type":"del')
    said = run_node(PROGRAM, path_of(reply_id), live, env=through)
    assert text_of(said) == client.message(reply_id)["text"]
    assert cable.cuts == 1


def test_catch_up_ends_at_the_tail_and_goes_on_from_its_offset(product: Product, environment: dict[str, str]) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 200, "every_ms": 20})["reply"]["id"]
    eventually("some of it is there", lambda: client.message(reply_id)["offset"] > 10)
    first = run_node(PROGRAM, path_of(reply_id), "catch-up", env=environment)
    assert not final(first)["closed"]
    second = run_node(PROGRAM, path_of(reply_id), "sse", final(first)["offset"], env=environment)
    assert text_of(first + second) == client.message(reply_id)["text"]
    third = run_node(PROGRAM, path_of(reply_id), "catch-up", final(second)["offset"], env=environment)
    assert (events_of(third), final(third)["closed"]) == ([], True)


def test_a_reader_that_begins_now_sees_what_comes(product: Product, environment: dict[str, str]) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 200, "every_ms": 20})["reply"]["id"]
    eventually("some of it is there", lambda: client.message(reply_id)["offset"] > 10)
    said = run_node(PROGRAM, path_of(reply_id), "sse", "now", env=environment)
    ids = [one["id"] for one in events_of(said)]
    assert ids[0] > 10
    assert ids == list(range(ids[0], client.message(reply_id)["offset"] + 1))
    assert final(said)["closed"]


def test_a_cancelled_reply_ends_as_cancelled(product: Product, environment: dict[str, str]) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 2000, "every_ms": 20})["reply"]["id"]
    with node(PROGRAM, path_of(reply_id), "sse", env=environment) as follower:
        follower.until("the tenth event", reached(10))
        assert client.http.post(f"/v1/messages/{reply_id}/cancel").status_code == 202
        said = follower.wait()
    end = end_of(said)
    assert end is not None
    assert end["status"] == "cancelled"
    assert text_of(said) == client.message(reply_id)["text"]


def test_what_is_refused_is_told(product: Product, environment: dict[str, str]) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 3})["reply"]["id"]
    client.read(reply_id)
    for path, other, status in (
        (path_of(reply_id + "x"), {}, 404),
        (path_of(reply_id), {"TURNLOG_API_KEY": "wrong"}, 401),
    ):
        said = run_node(PROGRAM, path, "sse", env=environment | other)
        assert said[-1].get("error") == status or said[-1].get("code") == "NOT_FOUND", said


def test_a_conversation_is_followed_to_its_deletion(product: Product, environment: dict[str, str]) -> None:
    client = product.client()
    sent = client.send({"chunks": 3})
    address = f"/v1/conversations/{sent['conversation_id']}"
    client.read(sent["reply"]["id"])
    with node(PROGRAM, f"/durable/conversations/{sent['conversation_id']}", "sse", env=environment) as follower:
        follower.until("the reply's end", lambda said: len(events_of(said)) == 2)
        assert client.persistently("PATCH", address, json={"title": "Named"}).status_code == 200
        follower.until("the name", lambda said: len(events_of(said)) == 3)
        assert client.http.delete(address).status_code == 204
        said = follower.wait()
    assert [one["type"] for one in events_of(said)] == ["message", "reply_ended", "renamed", "deleted"]
    assert final(said)["closed"]
