"""Drives a transactional step without a loop: records in, decisions taken over, state records kept for a restart."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from schemas.codec import Envelope
from schemas.events import Event
from streams.log.steps import Arrived, Decision, Output, Record, TransactionalStep

E = TypeVar("E", bound=Event)

NUMBER = 0


class Driver:
    """One partition number of a step. `now_ms` and `flow_ms` are moved by the test."""

    def __init__(self, make: Callable[[], TransactionalStep], now_ms: int = 1_000_000) -> None:
        self._make = make
        self.now_ms = now_ms
        self.flow_ms = 0
        self.states: list[Record] = []
        self.offsets: dict[str, int] = {}
        self.before: list[Event] = []
        self.outputs: list[Output] = []
        self.after: list[Event] = []
        self.restart()

    def restart(self) -> None:
        """A new process: only the state topic is left."""
        self.step = self._make()
        self.flow_ms = 0
        self.step.restore(NUMBER, self.states, self.now_ms, self.flow_ms)

    def arrived(self, event: Event) -> Arrived:
        """The event as the next record of its topic."""
        topic = event.TOPIC or ""
        offset = self.offsets.get(topic, 0)
        self.offsets[topic] = offset + 1
        record = Record(topic, NUMBER, offset, event.key(), b"", (), self.now_ms)
        return Arrived(record, Envelope(event=event, source="test"))

    def decide(self, *events: Event) -> Decision:
        """A decision that is not taken over."""
        return self.step.decide(NUMBER, [self.arrived(event) for event in events], self.now_ms, self.flow_ms)

    def take(self, *events: Event) -> list[Event]:
        """Decide and take over; what was written to the topics in the transaction."""
        return self.commit(self.decide(*events))

    def commit(self, decision: Decision, *, written: bool = True) -> list[Event]:
        """Take a decision over. Without `written` the process dies before `after` is acknowledged."""
        self.before.extend(output.event for output in decision.before)
        self.outputs.extend(decision.outputs)
        for state in decision.states:
            offset = len(self.states)
            self.states.append(Record("state", NUMBER, offset, state.key, state.value, (), self.now_ms))
        self.step.committed(NUMBER, decision)
        if written:
            self.after.extend(output.event for output in decision.after)
            self.step.written(NUMBER, decision)
        return [output.event for output in decision.outputs]

    def pass_time(self, ms: int, tick_ms: int = 500) -> list[Event]:
        """Both clocks go on, with a decision each tick."""
        events: list[Event] = []
        for _ in range(0, ms, tick_ms):
            self.now_ms += tick_ms
            self.flow_ms += tick_ms
            events.extend(self.take())
        return events

    def live_keys(self) -> set[str]:
        """Keys of the state topic that compaction would keep."""
        newest = {record.key or "": record.value for record in self.states}
        return {key for key, value in newest.items() if value is not None}


def of(events: Sequence[Event], kind: type[E]) -> list[E]:
    """The events of one class."""
    return [event for event in events if isinstance(event, kind)]
