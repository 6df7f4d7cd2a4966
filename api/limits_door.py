"""Limits at the door: what a send needs is reserved, or it is refused, before anything of it is written.

While Redis does not answer, or has lost what it had and its buckets are not made again yet, the mode that is set holds:
`local`, this process grants from a share of its own (`api.limits_local`); `refuse`, 503 that names Redis.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec
import structlog

from api.accounts import Caller
from api.limits import Before, Demand, Denied, Granted, Leases, Outcome, Told, TooLarge, Unweighed
from api.limits_local import LocalShare, WithoutRedis
from api.limits_spend import Spending, is_capped, said, until_next_month_s
from api.metrics import Metrics
from api.problems import (
    Problem,
    larger_than_limit,
    rate_limited,
    spend_limited,
    tokens_limited,
    too_many_running,
    unavailable,
)
from api.prompt_tokens import PROMPT_TOKENS, PromptTokens
from api.stores import Entry, HotStore, StoreDown, Views
from schemas.events import MessageSubmitted, RegenerationRequested, ReplyStored
from schemas.models import Model
from schemas.tiers import REQUESTS, RUNNING, buckets_of, keep_ms

log = structlog.get_logger()

RETRY_WITHOUT_REDIS_S = 2.0
AFTER_LEASE_MS = 3_600_000


class LimitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How limits hold in a deployment."""

    leases: Leases
    without_redis: WithoutRedis = "local"
    local_share: float = 0.1


class Door:
    """See the head of this module."""

    def __init__(
        self,
        *,
        hot: HotStore,
        views: Views,
        prompt_tokens: PromptTokens,
        spending: Spending,
        policy: LimitPolicy,
        metrics: Metrics,
        now_ms: Callable[[], int],
    ) -> None:
        self._hot = hot
        self._views = views
        self._prompt_tokens = prompt_tokens
        self._spending = spending
        self._policy = policy
        self._local = LocalShare(policy.local_share)
        self._metrics = metrics
        self._now_ms = now_ms

    async def demand(self, caller: Caller, event: MessageSubmitted | RegenerationRequested, model: Model) -> Demand:
        """What a send or regeneration needs."""
        texts = _texts(event)
        before = _before(event)
        prompt_tokens = await self._prompt_tokens.count(model, texts) if texts else 0
        return Demand(
            holder=caller.holder,
            reply_id=event.reply_id,
            conversation_id=event.conversation_id,
            buckets=buckets_of(caller.rules, model.name, model.pool, caller.holder),
            running_max=caller.rules.running_max,
            prompt_tokens=prompt_tokens + (PROMPT_TOKENS if before == "none" else 0),
            output_tokens=output_limit(model, caller, event.max_output_tokens),
            context_tokens=model.context_tokens,
            before=before,
            leases=self._policy.leases,
            keep_ms=max(keep_ms(caller.rules), self._policy.leases.reply_ms + AFTER_LEASE_MS),
        )

    async def pass_(self, demand: Demand, entry: Entry | None, told: Told) -> Demand | None:
        """The demand as it was reserved; None: without a reservation in Redis. Raises `Problem` 413, 429 or 503."""
        weighed = guessed = False
        whole, outcome = (entry.reserved.whole, entry.reserved.outcome) if entry is not None else (False, None)
        if isinstance(outcome, Unweighed):
            weighed = True
            demand, guessed = await self._weighed(demand)
            try:
                reserved = await self._hot.reserve(demand)
            except StoreDown as down:
                log.warning("send without redis", reason=down.reason)
                whole, outcome = False, None
            else:
                whole, outcome = reserved.whole, reserved.outcome
        if whole and isinstance(outcome, Granted | Denied | TooLarge):
            told.standing = outcome.standing
        granted = isinstance(outcome, Granted)
        try:
            said = outcome if whole and outcome is not None else await self._alone(demand)
            self._refuse(demand, said, known=whole and not guessed)
        except Problem:
            if weighed and granted:
                await self.release(demand)
            raise
        return demand if granted else None

    async def check_spend(self, caller: Caller, told: Told) -> None:
        """Raises `Problem` 402 where the account has spent what it may."""
        rules = caller.rules
        if not is_capped(rules):
            return
        spent = await self._spending.spent(caller.account_id)
        if spent is None:
            return
        if rules.spend_soft is not None and spent.amount >= rules.spend_soft:
            self._metrics.spend_warned.inc()
        told.spend = said(spent, rules)
        if rules.spend_hard is not None and spent.amount >= rules.spend_hard:
            raise spend_limited(f"{spent.amount:f}", f"{rules.spend_hard:f}", until_next_month_s(self._now_ms()))

    async def give_back(self, demand: Demand, entry: Entry | None) -> None:
        """Nothing comes of a send for which something may have been reserved."""
        if entry is not None and isinstance(entry.reserved.outcome, Granted) and entry.reserved.outcome.fresh:
            await self.release(demand)

    async def release(self, demand: Demand) -> None:
        """Give back a reservation; where that fails, its lease does."""
        try:
            await self._hot.release(demand.holder, demand.reply_id)
        except StoreDown as down:
            log.warning("reservation not given back", reason=down.reason)

    async def _alone(self, demand: Demand) -> Outcome:
        """What this process says without Redis. Raises `Problem` 503 where that is nothing."""
        self._metrics.sends_without_limits.labels(self._policy.without_redis).inc()
        if self._policy.without_redis == "refuse":
            raise _without_redis()
        if demand.before in ("last", "most"):
            demand, _ = await self._weighed(demand)
        return self._local.take(demand, self._now_ms() * 1000)

    def _refuse(self, demand: Demand, outcome: Outcome, *, known: bool) -> None:
        """`known`: by the whole buckets, and what the conversation weighs is no guess."""
        match outcome:
            case Granted() | Unweighed():
                return
            case TooLarge() if not known:  # larger than this process's share only, or only by a guess
                raise _without_redis()
            case TooLarge(lacking=name, tokens=tokens, capacity=capacity):
                raise larger_than_limit(name, tokens, capacity, demand.output_tokens)
            case Denied(lacking=name, retry_after_ms=retry_after_ms):
                if name == RUNNING:
                    raise too_many_running(demand.running_max, retry_after_ms / 1000)
                if name == REQUESTS:
                    raise rate_limited(retry_after_ms / 1000)
                raise tokens_limited(name, retry_after_ms / 1000)
            case _ as never:
                assert_never(never)

    async def _weighed(self, demand: Demand) -> tuple[Demand, bool]:
        """With what its conversation weighs, by the view; whether that is a guess: as much as the model takes."""
        stored = []
        try:
            events = await self._views.conversation_events(demand.holder.account_id, demand.conversation_id)
            stored = [event.usage for _, event in events if isinstance(event, ReplyStored)]
        except StoreDown as down:
            log.warning("a conversation is not weighed", reason=down.reason)
        most = max((usage.input_tokens + usage.output_tokens for usage in stored), default=demand.context_tokens)
        return msgspec.structs.replace(demand, before=most), not stored


def output_limit(model: Model, caller: Caller, asked: int | None) -> int:
    """The longest output that a reply may have: asked for, or the model's default; never above tier and model."""
    of_tier = caller.rules.output_tokens_max
    most = model.output_tokens_max if of_tier is None else min(of_tier, model.output_tokens_max)
    return min(asked or model.output_tokens_default, most)


def _texts(event: MessageSubmitted | RegenerationRequested) -> list[str]:
    """What the request brings into the prompt."""
    if isinstance(event, RegenerationRequested):
        return []
    return [said.content for said in event.history] + [event.content] + ([event.system] if event.system else [])


def _before(event: MessageSubmitted | RegenerationRequested) -> Before:
    if isinstance(event, RegenerationRequested):
        return "most"
    if event.new_conversation or event.history or event.parent_id == event.conversation_id:
        return "none"
    return "last" if event.parent_id is None else "most"


def _without_redis() -> Problem:
    detail = "Limits are kept in Redis, which does not answer or has lost them. Try again soon."
    return unavailable("redis", detail, RETRY_WITHOUT_REDIS_S)
