"""One example of every event, as it could stand in a log: for the documents and the golden bytes."""

from collections.abc import Mapping

from schemas import events as e
from schemas.codec import Envelope
from schemas.values import Failure, Notice, PromptMessage, Sampling, Timings, Usage, VoidAttempt

CONVERSATION = "conv_74dqqp7pt7rtlju1q5a7eishta5su3l2col0"
MESSAGE = "msg_74dqqp7pt7rtlju1q5a7eisht8cdvchg5t0r2o47bnje2vdmr84g"
REPLY = "rep_74dqqp7pt7rtlju1q5a7eisht9iihmdnm5bnkhhtinm9jv48v87g"
ACCOUNT = "demo"
GENERATION = "gen_0197f1c8a5d67c3e9b2f4d8a6c1e0b35"
INSTANCE = "0197f1c8a1b27d4c8e6f5a3b9c7d2e10"
POOL = "default"
MODEL = "smollm2-135m-instruct"
AT_MS = 1_764_434_400_123

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_USAGE = Usage(input_tokens=31, output_tokens=7, cached_input_tokens=16)
_TIMINGS = Timings(queued_ms=9, first_token_ms=62, total_ms=230)
_SAMPLING = Sampling(max_output_tokens=512, temperature=0.7, seed=42, stop=("\n\n",))
_PROMPT = (
    PromptMessage(role="system", content="You are brief."),
    PromptMessage(role="user", content="What is a log?"),
)

_EVENTS: tuple[e.Event, ...] = (
    e.MessageSubmitted(
        conversation_id=CONVERSATION,
        message_id=MESSAGE,
        reply_id=REPLY,
        account_id=ACCOUNT,
        tier="paid",
        content="What is a log?",
        body_digest=_DIGEST,
        submitted_at_ms=AT_MS,
        new_conversation=True,
        client_message_id="7b0e6c1a",
        max_output_tokens=512,
        temperature=0.7,
        seed=42,
        stop=("\n\n",),
        system="You are brief.",
        history=(PromptMessage(role="user", content="Hello."), PromptMessage(role="assistant", content="Hello!")),
        metadata={"topic": "logs"},
    ),
    e.RegenerationRequested(
        conversation_id=CONVERSATION,
        reply_id=REPLY,
        regenerated_id="rep_74dqqp7pt7rtlju1q5a7eishtbu7vbagll66bkd9lump9r1u7ieg",
        account_id=ACCOUNT,
        tier="paid",
        body_digest=_DIGEST,
        submitted_at_ms=AT_MS,
    ),
    e.ReplyStored(
        conversation_id=CONVERSATION,
        reply_id=REPLY,
        message_id=MESSAGE,
        account_id=ACCOUNT,
        tier="paid",
        pool=POOL,
        model=MODEL,
        status="completed",
        text="A sequence that only grows.",
        attempt=2,
        final_offset=12,
        usage=_USAGE,
        submitted_at_ms=AT_MS,
        ended_at_ms=AT_MS + 230,
        timings=_TIMINGS,
        void_attempts=(VoidAttempt(attempt=1, reason="worker_lost", worker=INSTANCE),),
    ),
    e.ConversationRenamed(
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        title="Logs",
        renamed_at_ms=AT_MS + 5000,
        request_id="0197f1c8b0a27e51a3c4d5e6f7a8b9c0",
    ),
    e.BranchChosen(
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        message_id=MESSAGE,
        chosen_at_ms=AT_MS + 6000,
        request_id="0197f1c8b0a27e51a3c4d5e6f7a8b9c1",
    ),
    e.ConversationDeleted(conversation_id=CONVERSATION, account_id=ACCOUNT, deleted_at_ms=AT_MS + 9000),
    e.ConversationSummarised(
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        until_message_id=REPLY,
        summary="The user asked what a log is.",
        summarised_at_ms=AT_MS + 8000,
    ),
    e.CancellationRequested(
        conversation_id=CONVERSATION, reply_id=REPLY, account_id=ACCOUNT, requested_at_ms=AT_MS + 100
    ),
    e.GenerationAdmitted(
        pool=POOL,
        priority="paid",
        reply_id=REPLY,
        message_id=MESSAGE,
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        tier="paid",
        model=MODEL,
        prompt=_PROMPT,
        prompt_tokens_estimate=10,
        sampling=_SAMPLING,
        submitted_at_ms=AT_MS,
        deadline_at_ms=AT_MS + 600_000,
        notices=(Notice(code="shortened", detail="Replies are shorter for now: at most 512 tokens."),),
    ),
    e.GenerationDeclined(
        pool=POOL,
        reply_id=REPLY,
        message_id=MESSAGE,
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        tier="free",
        model=MODEL,
        status="refused",
        error=Failure(code="high_demand", detail="Demand is high; try again in a minute.", retry_after_s=60),
        submitted_at_ms=AT_MS,
        admitted=False,
    ),
    e.GenerationCancelled(pool=POOL, reply_id=REPLY, conversation_id=CONVERSATION),
    e.GenerationRequested(
        pool=POOL,
        priority="paid",
        epoch=1043,
        reply_id=REPLY,
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        generation_id=GENERATION,
        attempt=1,
        model=MODEL,
        prompt=_PROMPT,
        sampling=_SAMPLING,
        submitted_at_ms=AT_MS,
        deadline_at_ms=AT_MS + 600_000,
        kv_tokens=527,
    ),
    e.GenerationRevoked(pool=POOL, epoch=1043, reply_id=REPLY, generation_id=GENERATION),
    e.GenerationQueued(
        reply_id=REPLY,
        message_id=MESSAGE,
        conversation_id=CONVERSATION,
        account_id=ACCOUNT,
        tier="paid",
        pool=POOL,
        model=MODEL,
        submitted_at_ms=AT_MS,
    ),
    e.NoticeGiven(
        reply_id=REPLY,
        conversation_id=CONVERSATION,
        notice=Notice(code="high_demand", detail="Demand is high; this reply may take a minute to begin."),
    ),
    e.GenerationStarted(
        reply_id=REPLY,
        conversation_id=CONVERSATION,
        generation_id=GENERATION,
        attempt=1,
        model=MODEL,
        worker=INSTANCE,
        started_at_ms=AT_MS + 9,
    ),
    e.TokensGenerated(
        reply_id=REPLY,
        conversation_id=CONVERSATION,
        generation_id=GENERATION,
        attempt=1,
        seq=1,
        text="A sequence",
        tokens=2,
    ),
    e.GenerationReset(reply_id=REPLY, conversation_id=CONVERSATION, attempt=2, reason="worker_lost"),
    e.GenerationEnded(
        reply_id=REPLY,
        conversation_id=CONVERSATION,
        generation_id=GENERATION,
        attempt=1,
        seq=8,
        status="completed",
        ended_at_ms=AT_MS + 230,
        usage=_USAGE,
        text_bytes=27,
        text_digest="d9ef3bc0a1e3c43d",
        timings=_TIMINGS,
    ),
    e.UsageRecorded(
        account_id=ACCOUNT,
        reply_id=REPLY,
        conversation_id=CONVERSATION,
        record_kind="reply",
        revision=1,
        usage_day="2025-11-29",
        status="completed",
        tier="paid",
        pool=POOL,
        model=MODEL,
        attempts=1,
        uncached_input_tokens=15,
        cache_read_input_tokens=16,
        cache_write_input_tokens=0,
        output_tokens=7,
        counted=True,
        cost="0.00000223",
        currency="USD",
        price_version="2026-11",
        ended_at_ms=AT_MS + 230,
    ),
    e.UsageAdjusted(
        account_id=ACCOUNT,
        reply_id=REPLY,
        record_kind="refund",
        revision=1,
        usage_day="2025-11-29",
        cost="-0.00000223",
        currency="USD",
        reason="The reply was empty.",
        adjusted_at_ms=AT_MS + 86_400_000,
    ),
    e.WorkerRegistered(
        pool=POOL, instance=INSTANCE, inbox=0, model=MODEL, slots=4, kv_tokens=8192, context_tokens=8192
    ),
    e.WorkerLeased(
        pool=POOL,
        instance=INSTANCE,
        inbox=0,
        epoch=1043,
        renewal=17,
        free_slots=3,
        free_kv_tokens=7600,
        running=1,
        prompt_tokens=5310,
        cached_tokens=2048,
        output_tokens=1911,
        step_ms=14.2,
        prefixes="I0VniQ==",
    ),
    e.WorkerReleased(pool=POOL, instance=INSTANCE, inbox=0, epoch=1043),
    e.GenerationFinished(
        pool=POOL,
        inbox=0,
        epoch=1043,
        reply_id=REPLY,
        generation_id=GENERATION,
        attempt=1,
        status="completed",
        queued_ms=9,
        usage=_USAGE,
        ran_ms=221,
    ),
    e.LoadMeasured(
        pool=POOL,
        model=MODEL,
        measured_at_ms=AT_MS,
        workers=2,
        slots=8,
        free_slots=0,
        kv_tokens=16_384,
        kv_tokens_held=9_120,
        running=8,
        waiting_paid=1,
        waiting_free=21,
        wait_paid_ms=410,
        wait_free_ms=4_800,
        stage_paid="full",
        stage_free="shorten",
    ),
    e.DemandForecast(
        pool=POOL,
        tier="paid",
        window_start_ms=1_764_434_400_000,
        window_ms=60_000,
        arrivals=12,
        input_tokens=372,
        output_tokens=84,
        queue_ms_mean=8.5,
        forecast_arrivals=13.2,
        forecast_output_tokens=92.4,
        service_ms_mean=221.0,
        seasonal=True,
    ),
    e.ReplicasDesired(
        pool=POOL,
        window_start_ms=1_764_434_400_000,
        window_ms=60_000,
        workers=2,
        slots_needed=9.5,
        slots_per_worker=4.0,
        replicas=3,
    ),
    e.AccountOpened(account_id=ACCOUNT, name="Demo", tier="paid", opened_at_ms=AT_MS),
    e.TierChanged(account_id=ACCOUNT, tier="free", changed_at_ms=AT_MS),
    e.KeyIssued(account_id=ACCOUNT, key_id="k1", key_hash=_DIGEST, issued_at_ms=AT_MS),
    e.KeyRevoked(account_id=ACCOUNT, key_id="k1", revoked_at_ms=AT_MS + 1),
    e.LimitsChanged(account_id=ACCOUNT, requests_per_minute=120, changed_at_ms=AT_MS),
)

_PARKED = e.GenerationParked(
    pool=POOL,
    reply_id=REPLY,
    workers=(INSTANCE, "0197f1c8b3c47f0d8a1e5d2c6b9f4a71"),
    parked_at_ms=AT_MS,
    admitted=next(event for event in _EVENTS if isinstance(event, e.GenerationAdmitted)),
)

EXAMPLES: Mapping[type[e.Event], e.Event] = {type(event): event for event in (*_EVENTS, _PARKED)}
"""An event of every class."""


def envelope(event: e.Event) -> Envelope[e.Event]:
    """The example's envelope; with time, cause and trace where the event's class carries them."""
    if not event.TIMED:
        return Envelope(event=event, source="turnlog/worker/0")
    return Envelope(
        event=event,
        source="turnlog/streams/turns/0",
        time_ms=AT_MS,
        causation_id=MESSAGE,
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )
