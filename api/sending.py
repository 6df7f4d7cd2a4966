"""From a request to the log: sends, regenerations, cancels. Answers come after Kafka's acknowledgement only.

While Redis is away, sends go on: what is granted is as `api.limits_door` says, the claim is checked in the view
(`api.claims`), and the next read may not show the message before the view has it.

What dispatch would refuse for its load is turned away here (`api.load`), before anything of it is written; a send that
was there before is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from api import claims
from api.accounts import Caller
from api.bodies import (
    NOTHING_BROUGHT,
    Brought,
    Generation,
    RegenerateBody,
    SendBody,
    check_model_limits,
    digest,
    unknown_model,
)
from api.limits import Demand, Told
from api.limits_door import Door, output_limit
from api.load import Load
from api.metrics import Metrics
from api.problems import Problem, bad_request, conflict, no_capacity, not_found, unavailable
from api.stores import Claim, Entry, FirstUse, HotStore, StoreDown, Views
from schemas.codec import to_json
from schemas.events import CancellationRequested, Event, MessageSubmitted, RegenerationRequested
from schemas.ids import Identities, Parsed
from schemas.models import Model, find
from schemas.values import Failure
from streams.log.steps import LogFull, NotAppended, Output, Place, Writer

log = structlog.get_logger()

ASK_VIEWS_S = 1.0

Request = MessageSubmitted | RegenerationRequested


class Sent(msgspec.Struct, frozen=True):
    """What is in the log now. `repeated`: it was before."""

    event: Request
    repeated: bool


class LetIn(msgspec.Struct, frozen=True):
    """It may go into the log. `reserved`: what is reserved for it in Redis."""

    reserved: Demand | None


_LIMITED = frozenset({402, 413, 429})


class Appender:
    """Writes to the log and waits for the acknowledgement."""

    def __init__(self, writer: Writer, timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = timeout_s

    async def append(self, events: Sequence[Event], traceparent: str) -> list[Place]:
        """The places of the events, in order. Raises `Problem` 503 when the log does not take them."""
        try:
            appended = [self._writer.append(Output(event=event, traceparent=traceparent)) for event in events]
            async with asyncio.timeout(self._timeout_s):
                return [await one for one in appended]
        except (LogFull, NotAppended, TimeoutError) as error:
            log.warning("not appended", reason=str(error) or "no acknowledgement in time")
            detail = (
                "The log (Kafka) did not acknowledge in time. Send the same again: with a client_message_id it is"
                " taken once, whatever became of this try."
            )
            raise unavailable("kafka", detail) from error


class Sender:
    """See the rules of this module and of `api.claims`."""

    def __init__(
        self,
        *,
        ids: Identities,
        models: tuple[Model, ...],
        appender: Appender,
        hot: HotStore,
        views: Views,
        load: Load,
        door: Door,
        metrics: Metrics,
        now_ms: Callable[[], int],
        pause_s: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ids = ids
        self._models = models
        self._appender = appender
        self._hot = hot
        self._views = views
        self._load = load
        self._door = door
        self._metrics = metrics
        self._now_ms = now_ms
        self._pause_s = pause_s

    def submission(self, caller: Caller, body: SendBody, brought: Brought = NOTHING_BROUGHT) -> MessageSubmitted:
        """The event of a send. Raises `Problem` for a bad model, conversation or parent."""
        model = self._check_model(caller, body)
        account_id, client_id = caller.account_id, body.client_message_id
        if body.conversation_id is None:
            conversation_id = self._ids.conversation(account_id, client_id)
        else:
            conversation_id = self._own_conversation(account_id, body.conversation_id)
            self._check_parent(account_id, conversation_id, body.parent_id)
        return MessageSubmitted(
            conversation_id=conversation_id,
            message_id=self._ids.message(account_id, conversation_id, client_id),
            reply_id=self._ids.reply(account_id, conversation_id, client_id),
            account_id=account_id,
            tier=caller.tier,
            priority=caller.rules.priority,
            content=body.content,
            body_digest=digest(body) if brought == NOTHING_BROUGHT else digest(body, brought=to_json(brought).decode()),
            submitted_at_ms=self._now_ms(),
            new_conversation=body.conversation_id is None or brought.begins,
            client_message_id=client_id,
            parent_id=body.parent_id,
            model=self._named(model, body.model),
            max_output_tokens=_output(caller, model, body.max_output_tokens),
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=tuple(body.stop),
            system="" if body.system is None and brought.without_system else body.system,
            history=brought.history,
            metadata=brought.metadata,
        )

    def regeneration(self, caller: Caller, regenerated: Parsed, body: RegenerateBody) -> RegenerationRequested:
        """The event of a regeneration. Raises `Problem` for a bad model."""
        model = self._check_model(caller, body)
        account_id, client_id = caller.account_id, body.client_message_id
        return RegenerationRequested(
            conversation_id=regenerated.conversation_id,
            reply_id=self._ids.reply(account_id, regenerated.conversation_id, client_id),
            regenerated_id=regenerated.id,
            account_id=account_id,
            tier=caller.tier,
            priority=caller.rules.priority,
            body_digest=digest(body, regenerated_id=regenerated.id),
            submitted_at_ms=self._now_ms(),
            client_message_id=client_id,
            model=self._named(model, body.model),
            max_output_tokens=_output(caller, model, body.max_output_tokens),
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=tuple(body.stop),
        )

    async def submit(self, caller: Caller, event: Request, traceparent: str, told: Told) -> Sent:
        """Bring it into the log, once. Raises `Problem` 402, 404, 409, 413, 429 or 503.

        It is submitted when it has been let in: what it waited for before that is not part of the reply's time. `told`
        is told how the caller's limits stand, also where it is refused.
        """
        client_id = event.client_message_id
        claim = Claim(client_id, event.body_digest) if client_id is not None else None
        model = self._model(event)
        if claim is None:  # it cannot have been there before
            self._check_load(caller, model)
        demand = await self._door.demand(caller, event, model)
        entry = await self._enter(demand, claim)
        decision: claims.Fresh | claims.Repeated | claims.Conflicting = claims.Fresh(ask_views=False)
        if claim is not None:
            decision = claims.decide(entry, claim.digest, event.submitted_at_ms) if entry else claims.UNCLAIMED
        try:
            let_in = await self._decided(caller, model, demand, entry, claim, decision, told)
        except Problem as problem:
            if problem.status in _LIMITED:
                self._metrics.refused_sends.labels(problem.code).inc()
            await self._door.give_back(demand, entry)
            if claim is not None and isinstance(decision, claims.Fresh) and decision.ours:
                await self._unclaim(caller, claim)
            raise
        if let_in is None:
            await self._door.give_back(demand, entry)
            self._metrics.repeated_sends.inc()
            return Sent(event, repeated=True)
        event = msgspec.structs.replace(event, submitted_at_ms=self._now_ms())
        (place,) = await self._appender.append((event,), traceparent)
        await self._remember(caller, event, place, claim, let_in.reserved)
        repeated = isinstance(decision, claims.Fresh) and not decision.ours
        if repeated:
            self._metrics.repeated_sends.inc()
        return Sent(event, repeated=repeated)

    async def _decided(
        self,
        caller: Caller,
        model: Model,
        demand: Demand,
        entry: Entry | None,
        claim: Claim | None,
        decision: claims.Fresh | claims.Repeated | claims.Conflicting,
        told: Told,
    ) -> "LetIn | None":
        """What is reserved for it; None: it is in the log already. Raises `Problem` as `submit` does."""
        if entry is not None and entry.deleted:
            raise not_found("conversation")
        if isinstance(decision, claims.Conflicting):
            raise conflict()
        if isinstance(decision, claims.Repeated):
            return None
        if claim is not None:
            if await self._used_before(caller, claim, decision):
                return None
            self._check_load(caller, model)
        await self._door.check_spend(caller, told)
        return LetIn(await self._door.pass_(demand, entry, told))

    async def cancel(self, caller: Caller, reply: Parsed, traceparent: str) -> None:
        """Ask that a reply stop."""
        event = CancellationRequested(
            conversation_id=reply.conversation_id,
            reply_id=reply.id,
            account_id=caller.account_id,
            requested_at_ms=self._now_ms(),
        )
        await self._appender.append((event,), traceparent)

    async def _enter(self, demand: Demand, claim: Claim | None) -> Entry | None:
        try:
            return await self._hot.enter(demand, claim)
        except StoreDown as down:
            self._metrics.degraded_sends.inc()
            log.warning("send without redis", reason=down.reason)
            return None

    def _check_load(self, caller: Caller, model: Model) -> None:
        refusal: Failure | None = self._load.refusal(model, caller.rules.priority, self._now_ms())
        if refusal is not None:
            self._metrics.refused_sends.labels(refusal.code).inc()
            raise no_capacity(refusal)

    async def _used_before(self, caller: Caller, claim: Claim, fresh: claims.Fresh) -> bool:
        """Whether the same was sent before, as far as the view knows. Raises `Problem` 409 for another body."""
        if not fresh.ask_views:
            return False
        if fresh.note_begin:
            await self._note_begin()
        if fresh.wait_ms:
            await self._pause_s(fresh.wait_ms / 1000)
        first = await self._first_use(caller, claim)
        if first is not None and first.digest != claim.digest:
            raise conflict()
        return first is not None

    async def _first_use(self, caller: Caller, claim: Claim) -> FirstUse | None:
        try:
            async with asyncio.timeout(ASK_VIEWS_S):
                return await self._views.first_use(caller.account_id, claim.client_message_id)
        except (StoreDown, TimeoutError) as error:
            log.warning("client message id not checked in the view", reason=str(error))
            return None

    async def _remember(
        self, caller: Caller, event: Request, place: Place, claim: Claim | None, reserved: Demand | None
    ) -> None:
        events = ((place.offset, event),)
        try:
            await self._hot.remember(
                caller.account_id, event.conversation_id, events, self._now_ms(), claim, confirmed=reserved
            )
        except StoreDown as down:
            log.warning("send not remembered", reason=down.reason)

    async def _unclaim(self, caller: Caller, claim: Claim) -> None:
        try:
            await self._hot.unclaim(caller.account_id, claim)
        except StoreDown as down:
            log.warning("claim not given back", reason=down.reason)

    async def _note_begin(self) -> None:
        try:
            await self._hot.claims_begin(self._now_ms())
        except StoreDown as down:
            log.warning("beginning of claims not noted", reason=down.reason)

    def _check_model(self, caller: Caller, body: Generation) -> Model:
        """The model that is asked for. Raises `Problem` 400 where the account may not have it, or not so much of it."""
        served = allowed(self._models, caller)
        model = find(served, body.model)
        if model is None:
            raise unknown_model([model.name for model in served])
        check_model_limits(model.output_tokens_max, body.max_output_tokens)
        most = caller.rules.output_tokens_max
        if most is not None and body.max_output_tokens is not None and body.max_output_tokens > most:
            raise bad_request([("max_output_tokens", f"this account's limit output_tokens_max is {most}")])
        return model

    def _named(self, model: Model, asked: str) -> str:
        """What the event says: `auto` stays, where it is the same for everybody."""
        return model.name if find(self._models, asked) is not model else asked

    def _model(self, event: Request) -> Model:
        model = find(self._models, event.model)
        if model is None:
            raise AssertionError(f"a request was made for a model that is not served: {event.model}")
        return model

    def _own_conversation(self, account_id: str, text: str) -> str:
        parsed = self._ids.parse(account_id, text)
        if parsed is None or parsed.kind != "conv":
            raise not_found("conversation")
        return parsed.id

    def _check_parent(self, account_id: str, conversation_id: str, text: str | None) -> None:
        if text is None or text == conversation_id:
            return
        parsed = self._ids.parse(account_id, text)
        if parsed is None:
            raise not_found("message")
        if parsed.conversation_id != conversation_id:
            raise bad_request([("parent_id", "is not a message of this conversation")])


def allowed(models: tuple[Model, ...], caller: Caller) -> tuple[Model, ...]:
    """Those that the caller may ask for."""
    names = caller.rules.models
    return models if names is None else tuple(model for model in models if model.name in names)


def _output(caller: Caller, model: Model, asked: int | None) -> int | None:
    """What the event says of the longest output: what was asked for; where the tier allows less than the model's
    default, that.
    """
    default = output_limit(model, caller, None)
    return asked if asked is not None or default == model.output_tokens_default else default
