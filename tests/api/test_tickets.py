"""Tickets: one stream, for some minutes, as long as their key lives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tickets import Ticket, read, written
from schemas.events import KeyRevoked
from schemas.stream import parse_frame
from tests.api.world import BOB, Process, World

SECRET = b"a secret of the tests"
TICKET = Ticket("alice", "key_1", "rep_x", 1_000)


async def issued(api: Process, stream_id: str) -> str:
    answer = await api.call("POST", "/v1/tickets", body={"id": stream_id})
    assert answer.status == 201
    assert answer.json["events_url"].endswith(f"{stream_id}/events?ticket={answer.json['ticket']}")
    return str(answer.json["events_url"])


async def test_a_ticket_opens_its_stream_at_any_offset_without_a_key(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), "a", "b")
    url = await issued(api, reply_id)
    call = api.begin("GET", f"{url}&after=2", key=None)
    await call.end()
    assert [parse_frame(each)[0] for each in call.frames] == [3, 4]
    again = api.begin("GET", url, key=None, headers={"Last-Event-ID": "3"})
    await again.end()
    assert [parse_frame(each)[0] for each in again.frames] == [4]


async def test_a_ticket_opens_nothing_else(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.whole(sent, "a")
    other_id = world.whole(await api.send("other"), "b")
    ticket = (await issued(api, reply_id)).partition("ticket=")[2]
    refused = [
        f"/v1/messages/{other_id}/events?ticket={ticket}",
        f"/v1/conversations/{sent['conversation_id']}/events?ticket={ticket}",
        f"/v1/messages/{reply_id}/events?ticket={ticket[:-1]}",
        f"/v1/messages/{reply_id}/events?ticket=",
    ]
    for path in refused:
        answer = await api.call("GET", path, key=None)
        assert (answer.status, answer.json["code"]) == (401, "ticket_refused")
    assert (await api.call("GET", f"/v1/messages/{reply_id}?ticket={ticket}", key=None)).status == 401


async def test_a_ticket_ends_with_its_time_and_with_its_key(world: World, api: Process) -> None:
    url = await issued(api, world.whole(await api.send(), "a"))
    world.time_ms += 299_900
    assert (await api.call("GET", f"{url}&after=3", key=None)).status == 204
    world.time_ms += 100
    assert (await api.call("GET", url, key=None)).status == 401
    url = await issued(api, world.whole(await api.send("more"), "a"))
    world.accounts.apply("alice/key/1", KeyRevoked(account_id="alice", key_id="1", revoked_at_ms=1))
    assert (await api.call("GET", url, key=None)).status == 401


async def test_a_ticket_is_given_for_what_is_the_callers_only(world: World, api: Process) -> None:
    sent = await api.send()
    for stream_id in (sent["reply"]["id"], sent["conversation_id"]):
        assert (await api.call("POST", "/v1/tickets", body={"id": stream_id}, key=BOB)).status == 404
    for stream_id in (sent["message"]["id"], "rep_x", ""):
        assert (await api.call("POST", "/v1/tickets", body={"id": stream_id})).status == 404


@given(st.text(max_size=700))
def test_whatever_is_given_for_a_ticket_is_refused(text: str) -> None:
    assert read(text, SECRET, 0) is None


@pytest.mark.parametrize("index", range(len(written(TICKET, SECRET))))
def test_a_changed_ticket_is_refused(index: int) -> None:
    text = written(TICKET, SECRET)
    changed = text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :]
    assert read(text, SECRET, 999) == TICKET
    assert read(text, SECRET, 1_000) is None
    assert read(text, b"another secret, as long", 999) is None
    found = read(changed, SECRET, 999)
    assert found is None or found == TICKET  # unused bits of the last character
