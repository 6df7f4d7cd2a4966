"""What is written once a transaction has committed, until it is acknowledged."""

from collections import deque
from collections.abc import Iterable

import msgspec

from streams.log.steps import Appended, Decision, TransactionalStep, Writer


class _Committed(msgspec.Struct, frozen=True):
    number: int
    decision: Decision
    appended: tuple[Appended, ...]


class Afterwards:
    """Appends the `after` of committed decisions, and tells `written` in the order of the commits."""

    def __init__(self, writer: Writer, step: TransactionalStep) -> None:
        self._writer = writer
        self._step = step
        self._waiting: deque[_Committed] = deque()

    def write(self, number: int, decision: Decision) -> None:
        """Begin to write the decision's `after`."""
        appended = tuple(self._writer.append(output) for output in decision.after)
        self._waiting.append(_Committed(number, decision, appended))

    def tell(self) -> None:
        """Tell what is acknowledged. Raises `NotAppended`: then the next life writes it, from its state."""
        while self._waiting and all(appended.done() for appended in self._waiting[0].appended):
            committed = self._waiting.popleft()
            for appended in committed.appended:
                appended.result(0)
            self._step.written(committed.number, committed.decision)

    def finish(self, timeout_s: float) -> None:
        """Wait until all is acknowledged, and tell it."""
        if self._waiting:
            self._writer.flush(timeout_s)
            self.tell()

    def forget(self, numbers: Iterable[int]) -> None:
        """These numbers are not ours any more: nothing is told of them."""
        gone = frozenset(numbers)
        self._waiting = deque(committed for committed in self._waiting if committed.number not in gone)
