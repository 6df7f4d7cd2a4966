"""The state of one pool: requests that wait or run, its workers, and ends that are decided but maybe not written."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from schemas.events import GenerationAdmitted, GenerationEnded, WorkerRegistered
from schemas.values import Priority

Phase = Literal["queued", "given"]
ModelQueue = tuple[str, Priority]
"""What a queue is of: a model and a priority."""
Place = tuple[int, str]
"""Where a request stands in its queue: the offset of its admission, and the reply's id."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a request is; the part of it that changes."""

    phase: Phase = "queued"
    attempt: int = 1
    lost: int = 0
    """Attempts whose worker died."""
    returned: int = 0
    """Attempts that were handed back."""
    inbox: int = -1
    epoch: int = -1
    """Lease of the worker that has it, while given."""
    cancelled: bool = False
    """Never to be given again; ends as cancelled if its worker dies."""
    reset_reason: str = ""
    unwritten: bool = False
    """The reset of this attempt is decided and perhaps not in `tokens` yet."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that has to run."""

    admitted: GenerationAdmitted
    order: int
    """Offset of its admission: first come, first served, also after a lost attempt."""
    traceparent: str | None = None
    progress: Progress = Progress()

    @property
    def generation_id(self) -> str:
        """The id of the current attempt; follows from reply and attempt."""
        return f"gen_{self.admitted.reply_id.removeprefix('rep_')}_{self.progress.attempt}"

    @property
    def tokens(self) -> int:
        """KV tokens that it may need: its prompt and its longest reply."""
        return self.admitted.prompt_tokens_estimate + self.admitted.sampling.max_output_tokens

    @property
    def chars(self) -> int:
        """Size of its prompt."""
        return sum(len(message.content) for message in self.admitted.prompt)


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker by its inbox: the newest registration, and what is known of its room."""

    registered: WorkerRegistered
    epoch: int
    alive: bool = True
    released: bool = False
    """It said that it stops: no late renewal revives this epoch."""
    draining: bool = False
    renewed_flow_ms: int = 0
    """When it renewed last, on the flow clock of this process."""
    free_slots: int = 0
    """As it said last, less what it was given and plus what it finished since."""
    free_tokens: int = 0
    held: int = 0
    """Generations that we know it has."""
    held_tokens: int = 0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One pool. The mappings are never changed in place."""

    name: str
    requests: Mapping[str, Request] = {}
    """By reply id; those that wait and those that run."""
    queues: Mapping[ModelQueue, list[Place]] = {}
    """Heaps; entries of requests that do not wait any more are skipped."""
    waiting: int = 0
    waiting_chars: int = 0
    workers: Mapping[int, Worker] = {}
    endings: Mapping[str, GenerationEnded] = {}
    """By reply id: ends decided here and perhaps not in `tokens` yet."""
    next_deadline_ms: int = 0
    """No request's deadline is before this."""
    recent: Mapping[str, None] = {}
    affinity: Mapping[str, int] = {}
    """Conversation -> inbox of the worker that had it last."""
    paid_in_row: int = 0
    """Placements of paid requests since the last aged free one."""


def tokens_held(worker: Worker, request: Request) -> int:
    """What a request takes of the worker's KV tokens; one that is larger than the worker takes all of it."""
    return min(request.tokens, worker.registered.kv_tokens)
