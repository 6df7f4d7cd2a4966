"""A page of another origin, in Chromium, sends and follows with fetch and EventSource."""

from collections.abc import Iterator

import pytest
from system.product import Product, eventually

from clients.cable import Cable
from clients.chromium import Chromium, Tab
from clients.heard import end_of, events_of, opens, reached, text_of
from clients.sites import Site

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Tab]:
    opened = chromium.tab()
    yield opened
    opened.close()


def open_reply(tab: Tab, site: Site, product: Product, cable: Cable, content: str) -> str:
    """The page that sends this and follows the reply; the reply's id."""
    tab.open(f"{site.origin}/pages/reply.html", api=cable.url, key=product.api_key, content=content)
    sent = tab.until("the page has sent", lambda said: next((one for one in said if "sent" in one), None))
    assert (sent["http"], bool(sent["requestId"])) == (202, True), sent
    return str(sent["sent"])


def closed(tab: Tab) -> None:
    """Until the page's EventSource has given up."""
    tab.until("EventSource stops", lambda said: any(one.get("closed") for one in said))


def test_a_page_of_another_origin_resumes_in_the_middle_of_an_event_and_stops_at_204(
    product: Product, site: Site, cable: Cable, tab: Tab
) -> None:
    cable.cut_at(b"id: 20\nevent: del")
    reply_id = open_reply(tab, site, product, cable, '{"chunks": 60, "every_ms": 20}')
    closed(tab)
    stored = product.client().message(reply_id)
    assert text_of(tab.said) == stored["text"]
    assert next(one["text"] for one in tab.said if "text" in one) == stored["text"]
    path = f"/v1/messages/{reply_id}/events"
    last = str(len(events_of(tab.said)))
    assert [asked.headers.get("last-event-id") for asked in cable.asked_for(path)] == [None, "19", last]
    assert {asked.method for asked in cable.asked_for("/v1/messages")} == {"OPTIONS", "POST"}
    assert cable.cuts == 1
    # A second reply of the same page, which takes longer than EventSource would wait before it connects again.
    tab.run("""send('{"chunks": 30, "every_ms": 100}')""")
    tab.until("a whole reply later", lambda said: len([one for one in said if one.get("type") == "ended"]) == 2)
    assert len(cable.asked_for(path)) == 3, "nothing was asked for after the end"


def test_a_reload_goes_on_after_the_cursor_in_the_address(product: Product, site: Site, cable: Cable, tab: Tab) -> None:
    reply_id = open_reply(tab, site, product, cable, '{"chunks": 100, "every_ms": 20}')
    tab.until("the twentieth event", reached(20))
    tab.reload()
    tab.until("the fiftieth event", reached(50))
    tab.reload()
    tab.until("the end", end_of)
    # What a page prints while it is being left may not come through; what it keeps does.
    shown = tab.until("the whole text", lambda said: [one["text"] for one in said if "text" in one])
    stored = product.client().message(reply_id)
    assert shown == [stored["text"]]
    ids = [one["id"] for one in events_of(tab.said)]
    assert ids == sorted(set(ids)), "no event comes twice"
    tab.reload()
    closed(tab)
    asked = cable.asked_for(f"/v1/messages/{reply_id}/events")
    cursors = [int(one.target.rpartition("after=")[2]) for one in asked]
    assert cursors[0] == 0
    assert 20 <= cursors[1] < 50 <= cursors[2] < cursors[3] == stored["offset"]
    assert len(cable.asked_for("/v1/messages")) == 2, "a preflight and one send"


def test_a_page_takes_a_new_ticket_when_the_old_one_has_expired(
    product: Product, site: Site, cable: Cable, tab: Tab
) -> None:
    reply_id = open_reply(tab, site, product, cable, '{"chunks": 300, "every_ms": 20}')
    path = f"/v1/messages/{reply_id}/events"
    tab.until("the twentieth event", reached(20))
    with_ticket = cable.asked_for(path)[0].target
    cable.unplug()
    eventually("the ticket has expired", lambda: opens(f"{product.url}{with_ticket}") == 401)
    before = len(cable.asked)
    cable.restore()
    tab.until("the end", end_of)
    assert text_of(tab.said) == product.client().message(reply_id)["text"]
    after = cable.asked[before:]
    refused, second = [asked for asked in after if asked.target.startswith(path)][:2]
    assert refused.target == with_ticket
    assert int(refused.headers["last-event-id"]) >= 20
    assert second.target.endswith(f"&after={refused.headers['last-event-id']}")
    assert "/v1/tickets" in [asked.target for asked in after]


def test_an_idle_stream_stays_one_connection(product: Product, site: Site, cable: Cable, tab: Tab) -> None:
    reply_id = open_reply(tab, site, product, cable, '{"chunks": 2, "every_ms": 2000, "first_after_ms": 2000}')
    tab.until("the end", end_of)
    before_the_end = tab.said[: [one.get("type") for one in tab.said].index("ended")]
    assert not [one for one in before_the_end if one.get("error")]
    assert text_of(tab.said) == product.client().message(reply_id)["text"]


def test_a_page_cancels_and_reads_every_refusal(product: Product, site: Site, cable: Cable, tab: Tab) -> None:
    reply_id = open_reply(tab, site, product, cable, '{"chunks": 2000, "every_ms": 20}')
    tab.until("the tenth event", reached(10))
    assert tab.run(f"call('POST', '/v1/messages/{reply_id}/cancel')")["http"] == 202
    end = tab.until("the end", end_of)
    assert end["status"] == "cancelled"
    assert text_of(tab.said) == product.client().message(reply_id)["text"]
    for path, status, code in (
        (f"/v1/messages/{reply_id}x", 404, "not_found"),
        (f"/v1/messages/{reply_id}/events?after=100000", 410, "cursor_gone"),
        (f"/v1/messages/{reply_id}/events?ticket=wrong", 401, "ticket_refused"),
    ):
        answer = tab.run(f"call('GET', '{path}')")
        assert (answer["http"], answer["code"]) == (status, code)
        assert answer["requestId"]


def test_a_page_of_an_origin_that_is_not_let_in_is_refused_by_the_browser(product: Product, tab: Tab) -> None:
    with Site() as stranger:
        tab.open(f"{stranger.origin}/pages/reply.html", api=product.url, key=product.api_key, content="hello")
        tab.until("the page fails", lambda said: any("Failed to fetch" in one.get("pageerror", "") for one in said))
    assert not events_of(tab.said)


def test_a_second_tab_follows_a_conversation(product: Product, site: Site, cable: Cable, tab: Tab) -> None:
    client = product.client()
    first = client.send({"chunks": 3})
    conversation_id = first["conversation_id"]
    path = f"/v1/conversations/{conversation_id}"
    client.read(first["reply"]["id"])
    cable.cut_at(b"event: reply_en")
    tab.open(f"{site.origin}/pages/feed.html", api=cable.url, key=product.api_key, id=conversation_id)

    def told(count: int) -> None:
        tab.until(f"{count} events", lambda said: len(events_of(said)) >= count)

    told(2)
    second = client.send({"chunks": 2}, conversation_id=conversation_id)
    client.read(second["reply"]["id"])
    told(4)
    again = client.persistently("POST", f"/v1/messages/{second['reply']['id']}/regenerate", json={}).json()
    assert client.persistently("PATCH", path, json={"title": "Rivers"}).status_code == 200
    regenerated = client.read(again["reply"]["id"])
    told(7)
    assert client.http.delete(path).status_code == 204
    told(8)
    events = events_of(tab.said)
    assert [one["id"] for one in events] == sorted({one["id"] for one in events})
    kinds = [one["type"] for one in events]
    assert kinds[:4] == ["message", "reply_ended"] * 2
    assert sorted(kinds[4:7]) == ["message", "renamed", "reply_ended"]
    assert kinds[7] == "deleted"
    ends = [one["data"] for one in events if one["type"] == "reply_ended"]
    assert [(end["id"], end["text"]) for end in ends][2] == (again["reply"]["id"], regenerated.text)
    users = [one["data"]["message"] for one in events if one["type"] == "message"]
    assert [bool(user) for user in users] == [True, True, False], "a regeneration adds no message of the user"
    assert client.http.get(path).status_code == 404
    assert len(cable.asked_for(f"{path}/events")) == 2, "again after the cut, and not after the deletion"
