"""`eventsource` on Node.js follows replies and conversations of the real product."""

import pytest
from system.product import Product, eventually

from clients.cable import Cable
from clients.heard import end_of, events_of, opens, reached, text_of
from clients.programs import node, run_node

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def through(environment: dict[str, str], cable: Cable) -> dict[str, str]:
    """The environment of a program that is at the other end of the cable."""
    return environment | {"TURNLOG_URL": cable.url}


def test_a_connection_lost_in_the_middle_of_an_event_is_resumed_exactly_and_204_is_the_end(
    product: Product, through: dict[str, str], cable: Cable
) -> None:
    client = product.client()
    sent = client.send({"chunks": 60, "every_ms": 20})
    path = sent["events_url"]
    cable.cut_at(b"id: 20\nevent: del")
    said = run_node("eventsource.mjs", path, env=through)
    assert text_of(said) == client.message(sent["reply"]["id"])["text"]
    assert said[-3]["type"] == "ended"
    assert said[-2:] == [{"error": None, "closed": False}, {"error": 204, "closed": True}]
    last = str(len(events_of(said)))
    assert [asked.headers.get("last-event-id") for asked in cable.asked_for(path)] == [None, "19", last]
    assert cable.cuts == 1


def test_a_network_that_is_away_for_a_while_costs_nothing(
    product: Product, through: dict[str, str], cable: Cable
) -> None:
    client = product.client()
    sent = client.send({"chunks": 100, "every_ms": 20})
    with node("eventsource.mjs", sent["events_url"], env=through) as follower:
        follower.until("the tenth event", reached(10))
        cable.unplug()
        eventually("it has tried in vain", lambda: cable.connections >= 2)
        assert client.read(sent["reply"]["id"]).end, "the reply goes on meanwhile"
        cable.restore()
        said = follower.wait()
    assert text_of(said) == client.message(sent["reply"]["id"])["text"]


def test_a_stream_that_is_idle_for_many_heartbeats_stays_one_connection(
    product: Product, through: dict[str, str], cable: Cable
) -> None:
    client = product.client()
    sent = client.send({"chunks": 2, "every_ms": 2500, "first_after_ms": 2500})
    said = run_node("eventsource.mjs", sent["events_url"], env=through)
    assert text_of(said) == client.message(sent["reply"]["id"])["text"]
    assert said[-1] == {"error": 204, "closed": True}
    assert len(cable.asked_for(sent["events_url"])) == 2, "the stream, and the 204 behind its end"


def test_a_stalled_connection_goes_on_without_loss(product: Product, through: dict[str, str], cable: Cable) -> None:
    client = product.client()
    sent = client.send({"chunks": 80, "every_ms": 20})
    with node("eventsource.mjs", sent["events_url"], env=through) as follower:
        follower.until("the tenth event", reached(10))
        cable.stall()
        assert client.read(sent["reply"]["id"]).end
        assert end_of(follower.said) is None
        cable.restore()
        said = follower.wait()
    assert text_of(said) == client.message(sent["reply"]["id"])["text"]
    assert len(cable.asked_for(sent["events_url"])) == 2


def test_a_cancelled_reply_ends_with_what_was_said(product: Product, environment: dict[str, str]) -> None:
    client = product.client()
    sent = client.send({"chunks": 2000, "every_ms": 20})
    with node("eventsource.mjs", sent["events_url"], env=environment) as follower:
        follower.until("the tenth event", reached(10))
        assert client.http.post(f"/v1/messages/{sent['reply']['id']}/cancel").status_code == 202
        said = follower.wait()
    end = end_of(said)
    assert end is not None
    assert end["status"] == "cancelled"
    assert text_of(said) == client.message(sent["reply"]["id"])["text"]


def test_a_failed_reply_ends_with_a_typed_error(product: Product, environment: dict[str, str]) -> None:
    sent = product.client().send({"chunks": 20, "every_ms": 1, "fail_at": 10})
    said = run_node("eventsource.mjs", sent["events_url"], env=environment)
    end = end_of(said)
    assert end is not None
    assert (end["status"], end["error"]["code"]) == ("failed", "engine_error")
    assert said[-1] == {"error": 204, "closed": True}


def test_what_is_refused_is_final(product: Product, through: dict[str, str], cable: Cable) -> None:
    client = product.client()
    sent = client.send({"chunks": 3})
    client.read(sent["reply"]["id"])
    path = sent["events_url"]
    unknown = path.replace("/events", "x/events")
    refusals = [(f"{path}?after=1000", {}, 410), (unknown, {}, 404), (path, {"TURNLOG_API_KEY": "wrong"}, 401)]
    for address, other, code in refusals:
        before = len(cable.asked)
        assert run_node("eventsource.mjs", address, env=through | other) == [{"error": code, "closed": True}]
        assert len(cable.asked) == before + 1


def test_an_expired_ticket_is_refused_and_a_new_one_goes_on_after_the_last_event(
    product: Product, through: dict[str, str], cable: Cable
) -> None:
    client = product.client()
    sent = client.send({"chunks": 300, "every_ms": 20})
    path = sent["events_url"]
    with node("eventsource_ticket.mjs", sent["reply"]["id"], env=through) as follower:
        follower.until("the twentieth event", reached(20))
        with_ticket = cable.asked_for(path)[0].target
        cable.unplug()
        eventually("the ticket has expired", lambda: opens(f"{product.url}{with_ticket}") == 401)
        before = len(cable.asked)
        cable.restore()
        said = follower.wait()
    assert text_of(said) == client.message(sent["reply"]["id"])["text"]
    assert 401 in [one["error"] for one in said if "error" in one]
    refused, second = [asked for asked in cable.asked[before:] if asked.target.startswith(path)]
    assert refused.target == with_ticket
    assert int(refused.headers["last-event-id"]) >= 20
    assert second.target.endswith(f"&after={refused.headers['last-event-id']}")
    assert all("authorization" not in asked.headers for asked in cable.asked_for(path))


def test_a_conversations_feed_is_followed_to_its_deletion(
    product: Product, through: dict[str, str], cable: Cable
) -> None:
    client = product.client()
    sent = client.send({"chunks": 3})
    path = f"/v1/conversations/{sent['conversation_id']}"
    client.read(sent["reply"]["id"])
    cable.cut_at(b"event: reply_en")
    with node("eventsource.mjs", f"{path}/events", env=through) as follower:
        follower.until("the first reply's end", lambda said: len(events_of(said)) == 2)
        assert client.persistently("PATCH", path, json={"title": "Named"}).status_code == 200
        again = client.persistently("POST", f"/v1/messages/{sent['reply']['id']}/regenerate", json={}).json()
        follower.until("the second reply's end", lambda said: len(events_of(said)) == 5)
        assert client.http.delete(path).status_code == 204
        said = follower.wait()
    events = events_of(said)
    kinds = [one["type"] for one in events]
    assert kinds == ["message", "reply_ended", "renamed", "message", "reply_ended", "deleted"]
    assert [one["id"] for one in events] == sorted({one["id"] for one in events})
    assert events[3]["data"]["reply"]["id"] == again["reply"]["id"]
    assert said[-1] == {"error": 404, "closed": True}
    assert cable.cuts == 1
