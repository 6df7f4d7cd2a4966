"""Limits at the door: what is let in, what is refused and how it is told, in every format, with and without Redis."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.limits import Denied, Granted, Leases, Told, outcome
from api.limits_door import LimitPolicy
from api.limits_headers import duration, headers_of
from api.limits_spend import until_next_month_s
from api.limits_twin import LimitsTwin, Settled
from schemas.events import AccountOpened, KeyIssued, MessageSubmitted
from schemas.ids import key_hash
from schemas.tiers import DEFAULT_TIERS, MICRO, Bucket, Holder, buckets_of, refilled, time_for_us
from tests.api.demands import LEASES, RULES, demand
from tests.api.world import BOB, Process, World, eventually

FREE = DEFAULT_TIERS["free"]


def limit(world: World, **members: Any) -> None:
    """What bob's tier allows."""
    world.tiers["free"] = replace(FREE, **members)


async def send(api: Process, **body: Any) -> Any:
    return await api.call("POST", "/v1/messages", key=BOB, body={"content": "hello"} | body)


async def limits(api: Process) -> dict[str, Any]:
    answer = await api.call("GET", "/v1/limits", key=BOB)
    return {bucket.pop("name"): bucket for bucket in answer.json["data"]}


def settle(world: World, sent: Any, tokens: int) -> None:
    """The reply ended, and the projection has heard of it."""
    holder = Holder("bob")
    end = Settled(
        reply_id=sent.json["reply"]["id"],
        conversation_id=sent.json["conversation_id"],
        done_ms=3_600_000,
        tokens=tokens,
        input_tokens=tokens // 2,
        output_tokens=tokens - tokens // 2,
        buckets=buckets_of(world.tiers["free"], "smollm2-135m-instruct", "default", holder),
    )
    world.hot.settle(holder, end)


async def test_a_send_reserves_its_prompt_and_its_longest_output_and_gets_back_the_rest(
    world: World,
) -> None:
    limit(world, tokens_per_minute=10, burst_tokens=1_000)
    api = world.process()
    sent = await send(api, max_output_tokens=100)
    bucket = (await limits(api))["tokens"]
    prompt = bucket["reserved"] - 100
    assert 0 < prompt < 60
    assert bucket["available"] == 1_000 - bucket["reserved"]
    settle(world, sent, 30)
    assert (await limits(api))["tokens"] == {
        "unit": "tokens",
        "capacity": 1_000,
        "available": 970,
        "refill_per_s": 0.166667,
        "reserved": 0,
    }


async def test_tokens_are_refused_with_a_true_time_and_a_denial_changes_nothing(world: World) -> None:
    limit(world, tokens_per_minute=600, burst_tokens=600)
    api = world.process()
    assert (await send(api, max_output_tokens=500)).status == 202
    before = await limits(api)
    for _ in range(3):
        refused = await send(api, max_output_tokens=500)
        assert (refused.status, refused.json["code"]) == (429, "tokens_limited")
    after = await limits(api)
    assert after["tokens"]["reserved"] == before["tokens"]["reserved"]
    assert after["requests"]["available"] == before["requests"]["available"]
    assert int(refused.headers["retry-after"]) >= refused.json["retry_after_s"]
    world.time_ms += round(refused.json["retry_after_s"] * 1000) - 20
    assert (await send(api, max_output_tokens=500)).status == 429
    world.time_ms += 20
    assert (await send(api, max_output_tokens=500)).status == 202
    assert len(world.submitted()) == 2


@pytest.mark.parametrize(("output_tokens", "status"), [(559, 202), (560, 413), (561, 413)])
async def test_more_than_the_bucket_is_refused_for_good(world: World, output_tokens: int, status: int) -> None:
    limit(world, tokens_per_minute=597)
    answer = await send(world.process(), max_output_tokens=output_tokens)
    assert answer.status == status
    if status == 413:
        assert answer.json["code"] == "larger_than_limit"
        assert "retry-after" not in answer.headers
        assert answer.headers["x-should-retry"] == "false"


async def test_replies_that_run_have_a_limit_with_a_code_of_its_own(world: World) -> None:
    limit(world, running_max=2)
    api = world.process()
    first, _ = await send(api), await send(api)
    refused = await send(api)
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (429, "too_many_running", "1")
    running = (await limits(api))["running"]
    assert (running["capacity"], running["available"], running["reserved"]) == (2, 0, 2)
    settle(world, first, 0)
    assert (await send(api)).status == 202


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"tokens_per_minute": 10, "burst_tokens": 700}, 429),
        ({"requests_per_minute": 1}, 429),
        ({"running_max": 1}, 429),
        ({"tokens_per_minute": 100}, 413),
        ({"spend_hard": Decimal(0)}, 402),
    ],
    ids=["tokens", "requests", "running", "too large", "spent"],
)
async def test_what_is_refused_is_not_let_in_by_being_sent_at_once_again(
    world: World, members: dict[str, Any], status: int
) -> None:
    limit(world, **members)
    apis = (world.process(), world.process())
    if status == 429:
        assert (await send(apis[0])).status == 202
    for number in range(4):
        body = {"client_message_id": f"twin-{number}", "max_output_tokens": 500}
        answers = await asyncio.gather(*(send(apis[n % 2], **body) for n in range(8)))
        assert {answer.status for answer in answers} == {status}
    accepted = [event for event in world.log.events("messages") if isinstance(event, MessageSubmitted)]
    assert len(accepted) == (status == 429)


async def test_a_repeated_send_takes_nothing_and_is_never_refused(world: World) -> None:
    limit(world, requests_per_minute=1, running_max=1)
    await world.hot.claims_begin(0)
    api = world.process()
    sent = await send(api, client_message_id="one")
    for _ in range(3):
        assert (await send(api, client_message_id="one")).status == 200
    assert (await send(api, client_message_id="two")).status == 429
    settle(world, sent, 10)
    assert (await send(api, client_message_id="one")).status == 200
    world.time_ms += 3 * 3_600_000  # the mark that it was settled is gone too
    assert (await send(api, client_message_id="one")).status == 200
    found = await limits(api)
    assert (found["requests"]["available"], found["running"]["reserved"]) == (1, 0)
    assert len(world.submitted()) == 1


async def test_what_is_refused_after_it_was_reserved_is_given_back(world: World) -> None:
    await world.hot.claims_begin(0)
    api = world.process()
    await send(api, client_message_id="one")
    before = await limits(api)
    assert (await send(api, client_message_id="one", content="other")).status == 409
    world.measure("refuse")
    assert (await send(api, client_message_id="two")).status == 503
    world.measure("full")
    deleted = (await send(api)).json["conversation_id"]
    assert (await api.call("DELETE", f"/v1/conversations/{deleted}", key=BOB)).status == 204
    assert (await send(api, conversation_id=deleted)).status == 404
    after = await limits(api)
    assert after["running"]["reserved"] == before["running"]["reserved"] + 1, "that of the deleted conversation"


async def test_a_holder_that_died_at_the_door_holds_its_share_for_one_lease(world: World) -> None:
    limit(world, running_max=1)
    api = world.process()
    world.log.down = True
    world.append_timeout_s = 0.01
    assert (await send(world.process())).status == 503
    world.log.down = False
    assert (await send(api)).status == 429
    world.time_ms += LEASES.door_ms
    assert (await send(api)).status == 202
    world.time_ms += LEASES.door_ms + 1_000
    assert (await send(api)).status == 429, "this one is in the log and may run for long"
    world.time_ms += LEASES.reply_ms
    assert (await send(api)).status == 202


async def test_model_and_pool_buckets_are_taken_from_together_or_not_at_all(world: World) -> None:
    limit(
        world,
        model_tokens_per_minute={"smollm2-135m-instruct": 1_000, "other": 5},
        pool_tokens_per_minute={"default": 300},
    )
    api = world.process()
    assert (await send(api, max_output_tokens=200)).status == 202
    found = await limits(api)
    assert list(found) == [
        "requests",
        "tokens",
        "model:other",
        "model:smollm2-135m-instruct",
        "pool:default",
        "running",
    ]
    refused = await send(api, max_output_tokens=200)
    assert refused.json["code"] == "tokens_limited"
    assert "'pool:default'" in refused.json["detail"]
    again = await limits(api)
    assert again["model:smollm2-135m-instruct"]["reserved"] == found["model:smollm2-135m-instruct"]["reserved"]


@pytest.mark.parametrize("asking", ["small", "large", "none"])
async def test_accounts_of_an_organisation_share_one_bucket_whatever_their_tiers(world: World, asking: str) -> None:
    """The API's side in memory; the same through the real functions: test_limits_step."""
    for tier, shared in (("small", 1_000), ("large", 900_000), ("none", None)):
        world.tiers[tier] = replace(FREE, tokens_per_minute=1_000_000, organisation_tokens_per_minute=shared)
        world.append(AccountOpened(account_id=tier, name="x", tier=tier, opened_at_ms=1, organisation_id="o"))
        issued = KeyIssued(account_id=tier, key_id="1", key_hash=key_hash(f"tlk_{tier}"), issued_at_ms=1)
        world.append(issued)
    await eventually("the accounts are known", lambda: world.accounts.knows(issued))
    api = world.process()

    async def shared(tier: str) -> Any:
        found = (await api.call("GET", "/v1/limits", key=f"tlk_{tier}")).json["data"]
        return next(bucket for bucket in found if bucket["name"] == "organisation")

    body = {"content": "hello", "max_output_tokens": 4_000}
    assert (await api.call("POST", "/v1/messages", key=f"tlk_{asking}", body=body)).status == 202
    for tier in ("small", "large", "none"):
        bucket = await shared(tier)
        assert (bucket["capacity"], bucket["refill_per_s"]) == (900_000, 15_000.0)
        assert 895_900 < bucket["available"] < 897_000


async def test_the_tiers_longest_output_is_a_bad_request_above_and_holds_where_nothing_is_said(world: World) -> None:
    limit(world, output_tokens_max=100)
    api = world.process()
    refused = await send(api, max_output_tokens=101)
    assert refused.status == 400
    assert "output_tokens_max is 100" in refused.json["detail"]
    await send(api, max_output_tokens=100)
    await send(api)
    limit(world, output_tokens_max=600)
    await send(api)
    asked = [event.max_output_tokens for event in world.events("messages") if isinstance(event, MessageSubmitted)]
    assert sorted(asked, key=str) == [100, 100, None]


async def test_models_that_the_account_may_not_have_are_not_served(world: World) -> None:
    limit(world, models=("another",))
    api = world.process()
    for model in ("auto", "smollm2-135m-instruct"):
        assert (await send(api, model=model)).status == 400
    paths = ("/v1/models", "/openai/v1/models", "/anthropic/v1/models")
    for path in paths:
        assert (await api.call("GET", path, key=BOB)).json["data"] == [], path
    for path in paths[1:]:
        assert (await api.call("GET", f"{path}/smollm2-135m-instruct", key=BOB)).status == 404
    limit(world, models=("smollm2-135m-instruct",))
    assert (await send(api)).status == 202
    for path in paths:
        assert len((await api.call("GET", path, key=BOB)).json["data"]) == 1, path


async def test_the_conversation_so_far_counts(world: World) -> None:
    limit(world, tokens_per_minute=100_000)
    api = world.process()
    first = await send(api, max_output_tokens=100)
    reserved = (await limits(api))["tokens"]["reserved"]
    settle(world, first, 5_000)
    await send(api, max_output_tokens=100, conversation_id=first.json["conversation_id"])
    grown = (await limits(api))["tokens"]["reserved"]
    assert 4_900 < grown - reserved <= 5_000
    await send(api, max_output_tokens=4_000, conversation_id=first.json["conversation_id"])
    assert (await limits(api))["tokens"]["reserved"] - grown == 8_192, "never more than the model takes"


def answered(world: World, sent: Any) -> None:
    """A send's reply has run, and is stored."""
    reply_id = world.queue(sent.json, "bob")
    world.start(reply_id)
    world.say(reply_id, "one", "two")
    world.end(reply_id)
    world.store(reply_id)


async def test_a_conversation_that_redis_does_not_know_is_weighed_by_the_view(world: World) -> None:
    api = world.process()
    sent = await send(api)
    answered(world, sent)
    world.hot.lose()
    world.hot.whole = True
    world.project()
    known = await send(api, conversation_id=sent.json["conversation_id"], max_output_tokens=10)
    assert known.status == 202
    small = (await limits(api))["tokens"]["reserved"]
    assert small < 100
    world.hot.lose()
    world.hot.whole = True
    world.views.down = True
    await send(api, conversation_id=sent.json["conversation_id"], max_output_tokens=10)
    assert (await limits(api))["tokens"]["reserved"] == 8_192


async def test_what_is_too_large_only_by_a_guess_is_asked_to_come_again(world: World) -> None:
    limit(world, tokens_per_minute=6_000)
    api = world.process()
    sent = await send(api, max_output_tokens=100)
    world.hot.lose()
    world.hot.whole = True
    follow = {"conversation_id": sent.json["conversation_id"], "max_output_tokens": 10}
    refused = await send(api, **follow)
    assert (refused.status, refused.json["code"]) == (503, "redis_unavailable"), "its first reply still runs"
    settle(world, sent, 50)
    assert (await send(api, **follow)).status == 202


async def test_without_redis_a_conversation_that_the_view_knows_goes_on(world: World) -> None:
    limit(world, requests_per_minute=600, tokens_per_minute=40_000)
    api = world.process(policy=LimitPolicy(leases=LEASES, local_share=0.1))
    sent = await send(api)
    answered(world, sent)
    world.project()
    world.hot.down = True
    follow = {"conversation_id": sent.json["conversation_id"], "max_output_tokens": 50}
    assert (await send(api, **follow)).status == 202
    world.views.down = True
    assert (await send(api, **follow)).status == 503, "nobody knows what it weighs"


async def test_the_headers_of_each_format(world: World) -> None:
    limit(world, requests_per_minute=10, tokens_per_minute=60_000, burst_tokens=20_000)
    api = world.process()
    native = await send(api, max_output_tokens=100)
    assert native.headers["ratelimit-policy"] == (
        '"requests";q=10;w=60, "tokens";q=20000;w=20, "running";q=20;qu="concurrent-requests"'
    )
    assert native.headers["ratelimit"].startswith('"requests";r=9;t=6, "tokens";r=19')
    openai = {"model": "auto", "messages": [{"role": "user", "content": "x"}], "stream": True}
    call = api.begin("POST", "/openai/v1/chat/completions", key=BOB, body=openai)
    await eventually("it begins", lambda: call.headers)
    await call.leave()
    assert call.headers["x-ratelimit-limit-requests"] == "10"
    assert call.headers["x-ratelimit-remaining-requests"] == "8"
    assert call.headers["x-ratelimit-reset-requests"] == "12s"
    assert call.headers["x-ratelimit-limit-tokens"] == "20000"
    assert "ratelimit" not in call.headers
    body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}], "stream": True}
    call = api.begin("POST", "/anthropic/v1/messages", key=BOB, body=body)
    await eventually("it begins", lambda: call.headers)
    await call.leave()
    assert call.headers["anthropic-ratelimit-requests-remaining"] == "7"
    assert call.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        (
            "/openai/v1/chat/completions",
            {"model": "auto", "messages": [{"role": "user", "content": "x"}]},
            lambda told: (told["error"]["type"], told["error"]["code"]),
        ),
        (
            "/openai/v1/responses",
            {"model": "auto", "input": "x"},
            lambda told: (told["error"]["type"], told["error"]["code"]),
        ),
        (
            "/anthropic/v1/messages",
            {"model": "auto", "max_tokens": 4096, "messages": [{"role": "user", "content": "x"}]},
            lambda told: (told["error"]["type"], None),
        ),
    ],
)
async def test_refusals_have_the_shape_of_each_format(world: World, path: str, body: Any, shape: Any) -> None:
    api = world.process()
    limit(world, tokens_per_minute=50)
    large = await api.call("POST", path, key=BOB, body=body)
    assert large.status == 413
    assert shape(large.json) in [("invalid_request_error", "larger_than_limit"), ("request_too_large", None)]
    limit(world, running_max=1)
    await send(api)
    full = await api.call("POST", path, key=BOB, body=body)
    assert (full.status, full.headers["retry-after"]) == (429, "1")
    assert shape(full.json) in [("rate_limit_error", "too_many_running"), ("rate_limit_error", None)]


async def test_without_redis_a_process_grants_from_its_own_share(world: World) -> None:
    limit(world, requests_per_minute=100, tokens_per_minute=1_000_000)
    policy = LimitPolicy(leases=LEASES, local_share=0.05)
    processes = [world.process(policy=policy), world.process(policy=policy)]
    world.hot.down = True
    statuses = [(await send(processes[number % 2])).status for number in range(16)]
    assert statuses.count(202) == 10
    assert statuses[-1] == 429
    assert [bucket["available"] for bucket in (await limits(processes[0])).values()] == [None, None, None]
    world.hot.down = False
    assert (await send(processes[0])).status == 202


async def test_a_redis_that_has_lost_the_buckets_does_not_count_until_they_are_made_again(world: World) -> None:
    limit(world, requests_per_minute=100, tokens_per_minute=1_000_000)
    api = world.process()
    world.hot.lose()
    statuses = [(await send(api)).status for _ in range(12)]
    assert (statuses.count(202), statuses[-1]) == (10, 429)
    refused = await send(api)
    assert "ratelimit" not in refused.headers
    world.hot.whole = True
    assert (await send(api)).status == 202
    assert (await limits(api))["running"]["reserved"] == 11, "what was let in meanwhile stands"


async def test_a_send_too_large_for_the_share_alone_is_asked_to_come_again(world: World) -> None:
    limit(world, tokens_per_minute=1_000)
    world.hot.down = True
    refused = await send(world.process(), max_output_tokens=500)
    assert (refused.status, refused.json["code"]) == (503, "redis_unavailable")


async def test_where_it_is_set_sends_are_refused_without_redis(world: World) -> None:
    api = world.process(policy=LimitPolicy(leases=LEASES, without_redis="refuse"))
    for loss in ("down", "lost"):
        if loss == "down":
            world.hot.down = True
        else:
            world.hot.down = False
            world.hot.lose()
        refused = await send(api)
        assert (refused.status, refused.json["code"]) == (503, "redis_unavailable")
        assert refused.headers["retry-after"] == "2"
    assert world.submitted() == []
    world.hot.whole = True
    assert (await limits(api))["running"]["reserved"] == 0


async def spend(world: World, api: Process, amount: str, **caps: Decimal) -> Any:
    limit(world, **caps)

    async def totals(*_: Any) -> Any:
        return ({"cost": amount, "currency": "USD"},)

    world.views.usage_totals = totals  # type: ignore[method-assign]
    return await send(api)


async def test_a_soft_cap_is_told_and_a_hard_one_refuses_until_the_month_is_over(world: World) -> None:
    api = world.process()
    fine = await spend(world, api, "79.99", spend_soft=Decimal(80), spend_hard=Decimal(100))
    assert (fine.status, fine.headers["x-spend-limit"]) == (202, "spent=79.99, soft=80, hard=100, currency=USD")
    world.time_ms += 70_000
    first = await spend(world, api, "80", spend_soft=Decimal(80), spend_hard=Decimal(100))
    assert first.headers["x-spend-limit"].startswith("spent=79.99,"), "what was known counts, and is asked meanwhile"
    assert (await spend(world, api, "80", spend_soft=Decimal(80), spend_hard=Decimal(100))).status == 202
    assert "turnlog_api_spend_warned_total 1.0" in api.metrics.page().decode()
    world.time_ms += 70_000
    assert (await spend(world, api, "100", spend_soft=Decimal(80), spend_hard=Decimal(100))).status == 202
    refused = await spend(world, api, "100", spend_soft=Decimal(80), spend_hard=Decimal(100))
    assert (refused.status, refused.json["code"]) == (402, "spend_limited")
    assert refused.headers["x-should-retry"] == "false"
    assert abs(refused.json["retry_after_s"] - until_next_month_s(world.time_ms)) < 1
    assert (await limits(api))["spend"] == {
        "unit": "USD",
        "capacity": "100",
        "available": "0",
        "refill_per_s": 0.0,
        "reserved": 0,
    }
    assert len(world.submitted()) == 4
    world.time_ms += round(until_next_month_s(world.time_ms) * 1000)
    assert (await spend(world, api, "0", spend_hard=Decimal(100))).status == 202


async def test_what_is_not_known_of_the_spending_refuses_nobody(world: World) -> None:
    limit(world, spend_hard=Decimal(0))
    world.views.down = True
    assert (await send(world.process())).status == 202


def hang(world: World) -> list[int]:
    """ClickHouse answers nobody about money any more; when it was asked."""
    asked: list[int] = []

    async def totals(*_: Any) -> Any:
        asked.append(world.time_ms)
        world.time_ms += 1_000
        await asyncio.Event().wait()

    world.views.usage_totals = totals  # type: ignore[method-assign]
    return asked


async def test_a_view_that_hangs_is_waited_for_once_in_a_while_and_not_in_the_replys_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.limits_spend.ASK_S", 0.05)
    limit(world, spend_hard=Decimal(100))
    asked = hang(world)
    api = world.process()
    began_ms = world.time_ms
    for _ in range(5):
        assert (await send(api)).status == 202
    assert len(asked) == 1
    submitted = [event.submitted_at_ms for event in world.events("messages") if isinstance(event, MessageSubmitted)]
    assert min(submitted) >= began_ms + 1_000
    world.time_ms += 5_000
    assert (await send(api)).status == 202
    assert len(asked) == 2


async def test_nobody_waits_for_a_view_that_hangs_where_something_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world.process()
    assert (await spend(world, api, "10", spend_hard=Decimal(100))).status == 202
    monkeypatch.setattr("api.limits_spend.ASK_S", 3_600)
    asked = hang(world)
    for _ in range(3):
        world.time_ms += 10_000
        sent = await asyncio.wait_for(send(api), 10)
        assert sent.headers["x-spend-limit"] == "spent=10, hard=100, currency=USD"
    assert len(asked) == 1


def test_durations_are_written_as_openai_does() -> None:
    assert [duration(n) for n in (0, 1, 59, 60, 360, 3_661)] == ["0s", "1s", "59s", "1m0s", "6m0s", "1h1m1s"]


def test_names_in_headers_are_plain() -> None:
    told = Told()
    rules = replace(RULES, model_tokens_per_minute={'ü"\\\r\n': 5})
    asked = demand(rules=rules, model='ü"\\\r\n', output_tokens=1, prompt_tokens=1)
    answer = outcome(LimitsTwin().reserve(asked, 1), asked)
    assert isinstance(answer, Granted)
    told.standing = answer.standing
    (policy, _) = headers_of("/v1/messages", told, 0.0)
    assert b'"model:?\\"\\\\??";q=5' in policy[1]


@given(
    st.integers(0, 2**50),
    st.integers(1, 1_000_000_000),
    st.integers(1, 1_000_000_000),
    st.integers(0, 10**13),
)
def test_a_bucket_has_what_is_asked_for_after_exactly_the_time_that_is_told(
    level: int, capacity: int, per_minute: int, asked: int
) -> None:
    bucket = Bucket("tokens", capacity, per_minute)
    full = capacity * MICRO
    level, asked = min(level, full), min(asked, full)
    if asked <= level:
        return
    wait_us = time_for_us(asked - level, per_minute)
    assert refilled(level, 7, bucket, 7 + wait_us) >= asked
    assert refilled(level, 7, bucket, 7 + wait_us - 1) < asked
    assert refilled(level, 7, bucket, 7 + wait_us // 2) <= full


LONG = Leases(door_ms=10**9, reply_ms=10**9)
"""None lapses within a test."""
MOVES = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "release", "wait"]), st.integers(0, 9), st.integers(0, 3_000_000)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(MOVES, st.integers(1, 6_000), st.integers(100, 2_000))
def test_granted_is_never_more_than_capacity_and_refill_and_who_waits_alone_gets_in(
    moves: Any, per_minute: int, burst: int
) -> None:
    rules = replace(RULES, tokens_per_minute=per_minute, burst_tokens=burst, requests_per_minute=60_000_000)
    twin, now, began = LimitsTwin(), 10**15, 10**15
    granted = 0
    held: dict[str, int] = {}
    for kind, number, amount in moves:
        reply = f"r{number}"
        asked = demand(reply, rules=rules, prompt_tokens=0, output_tokens=amount % 700, leases=LONG)
        if kind == "reserve":
            answer = outcome(twin.reserve(asked, now), asked)
            if isinstance(answer, Granted) and answer.fresh:
                held[reply] = asked.output_tokens
                granted += asked.output_tokens
            elif isinstance(answer, Denied) and answer.lacking == "tokens":
                now += answer.retry_after_ms * 1000
                alone = outcome(twin.reserve(asked, now), asked)
                assert isinstance(alone, Granted)
                held[reply] = asked.output_tokens
                granted += asked.output_tokens
        elif kind == "settle" and reply in held:
            used = amount % (held[reply] + 1)
            buckets = buckets_of(rules, "m", "p", Holder("a"))
            end = Settled(
                reply_id=reply,
                conversation_id="conv",
                done_ms=1,
                tokens=used,
                input_tokens=0,
                output_tokens=used,
                buckets=buckets,
            )
            twin.settle(Holder("a"), end, now)
            granted -= held.pop(reply) - used
            now += 2_000
        elif kind == "release" and reply in held:
            assert twin.release(Holder("a"), reply) == 1
            granted -= held.pop(reply)
        elif kind == "wait":
            now += amount
        assert granted <= burst + (now - began) * per_minute / 60_000_000 + 1
