"""The transactional step of dispatch: records of `requests` and `workers` in, decisions of the pools out.

Leases are measured on the flow clock, and begin anew after a restart: no outage, of the log or our own, kills a worker.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from schemas.events import GenerationAdmitted, LoadMeasured
from schemas.models import Model
from streams.dispatch import rules
from streams.dispatch.giving import place
from streams.dispatch.limits import Limits
from streams.dispatch.numbers import Values, numbers
from streams.dispatch.outbox import Mark
from streams.dispatch.pool import Pool
from streams.dispatch.records import restored
from streams.dispatch.round import Round
from streams.dispatch.service import observe
from streams.log.steps import NOTHING, Arrived, Decision, Output, Record, StateRecord
from streams.state import newest


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of one partition number."""

    pools: Mapping[str, Pool] = {}
    written: frozenset[Mark] = frozenset()
    """What the plain writer has delivered since, and the records still call unwritten."""
    resend: bool = True
    """Nothing was written since the restart: what may be missing has to be written again."""


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What `committed` and `written` take over."""

    rounds: tuple[Round, ...]
    confirmed: frozenset[Mark]
    marks: frozenset[Mark]


class Dispatch:
    """A `TransactionalStep`; `pools` are the names of the pools that this deployment serves."""

    def __init__(self, pools: frozenset[str], limits: Limits, models: Sequence[Model] = ()) -> None:
        self._names = pools
        self._limits = limits
        self._models = {model.name: model for model in models}
        self._shards: dict[int, Shard] = {}
        self._told: dict[int, tuple[LoadMeasured, ...]] = {}
        """By partition number, what was told last of its pools."""

    def shard(self, number: int) -> Shard:
        """The state of a partition number, for metrics and tests."""
        return self._shards.get(number, Shard())

    def numbers(self) -> Mapping[str, Values]:
        """What `streams.dispatch.numbers` names."""
        pools = [pool for shard in self._shards.values() for pool in shard.pools.values()]
        return numbers(pools, [load for loads in self._told.values() for load in loads])

    def restore(self, number: int, records: Iterable[Record], now_ms: int, flow_ms: int) -> None:  # noqa: ARG002
        """Takes the newest record of each key."""
        self._shards[number] = Shard(pools=restored(newest(records), self._limits, flow_ms))

    def decide(self, number: int, batch: Sequence[Arrived], now_ms: int, flow_ms: int) -> Decision:
        """Every record of the batch, then time, then placement."""
        return decide(self._shards[number], batch, now_ms, flow_ms, self._names, self._limits, self._models)

    def committed(self, number: int, decision: Decision) -> None:
        """Take over the pools."""
        staged: Staged | None = decision.staged
        if staged is None:
            return
        shard = self._shards[number]
        pools = {round_.name: round_.settle() for round_ in staged.rounds}
        self._shards[number] = Shard(
            pools={**shard.pools, **pools}, written=shard.written - staged.confirmed, resend=False
        )
        loads = tuple(output.event for output in decision.reports if isinstance(output.event, LoadMeasured))
        if loads:
            told = {load.pool for load in loads}
            self._told[number] = (*(load for load in self._told.get(number, ()) if load.pool not in told), *loads)

    def written(self, number: int, decision: Decision) -> None:
        """The next decision may forget that these might be missing."""
        staged: Staged | None = decision.staged
        shard = self._shards.get(number)
        if shard is not None and staged is not None and staged.marks:
            self._shards[number] = replace(shard, written=shard.written | staged.marks)

    def revoked(self, number: int) -> None:
        """Forget the shard."""
        self._shards.pop(number, None)
        self._told.pop(number, None)


def decide(
    shard: Shard,
    batch: Sequence[Arrived],
    now_ms: int,
    flow_ms: int,
    names: frozenset[str],
    limits: Limits,
    models: Mapping[str, Model],
) -> Decision:
    """What a shard does about these records at this time."""
    rounds: dict[str, Round] = {}

    def round_of(name: str) -> Round:
        if name not in rounds:
            pool = shard.pools.get(name, Pool(name=name, next_deadline_ms=rules.NEVER_MS))
            rounds[name] = Round(pool, limits, now_ms, flow_ms)
        return rounds[name]

    named = {getattr(arrived.envelope.event, "pool", None) for arrived in batch}
    for name, pool in shard.pools.items():
        if shard.resend:
            round_of(name).write_again()
        elif name not in named and not rules.quiet(pool, limits, now_ms, flow_ms):
            round_of(name)
    for mark in sorted(shard.written):
        round_of(mark[0]).confirm(mark)
    for arrived in batch:
        of = getattr(arrived.envelope.event, "pool", None)
        if of is not None:
            _take(round_of(of), arrived, models, known=of in names)
    for round_ in rounds.values():
        rules.expire_leases(round_)
        rules.expire_requests(round_)
        place(round_)
        observe(round_, models)
    return _decision(shard, [rounds[name] for name in sorted(rounds)]) if rounds else NOTHING


def _take(round_: Round, arrived: Arrived, models: Mapping[str, Model], *, known: bool) -> None:
    event = arrived.envelope.event
    if isinstance(event, GenerationAdmitted) and not known:
        rules.refuse(round_, event, rules.POOL_UNKNOWN, arrived.envelope)
    else:
        rules.take(round_, arrived.envelope, arrived.record.offset, models)


def _decision(shard: Shard, rounds: Sequence[Round]) -> Decision:
    boxes = [round_.outbox for round_ in rounds]
    return Decision(
        before=_outputs(box.before for box in boxes),
        outputs=_outputs(box.outputs for box in boxes),
        states=tuple(StateRecord(key=key, value=value) for box in boxes for key, value in box.states.items()),
        after=_outputs(box.after for box in boxes),
        reports=_outputs(box.reports for box in boxes),
        staged=Staged(
            rounds=tuple(rounds),
            confirmed=shard.written,
            marks=frozenset(mark for box in boxes for mark in box.marks),
        ),
    )


def _outputs(parts: Iterable[list[Output]]) -> tuple[Output, ...]:
    return tuple(output for part in parts for output in part)
