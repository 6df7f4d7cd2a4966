"""State records of dispatch: a pool to records and back.

Keys: `<pool>/<reply_id>/request` (written once: the admission), `<pool>/<reply_id>/progress` (absent: waiting, first
attempt), `<pool>/<reply_id>/end` (an end that may not be in `tokens` yet), `<pool>/worker/<inbox>`.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from schemas.codec import to_json
from schemas.events import GenerationAdmitted, GenerationEnded, WorkerRegistered
from schemas.prefix import named, rendered, salt_of
from streams.dispatch import queue
from streams.dispatch.limits import Limits
from streams.dispatch.pool import Pool, Progress, Request, Worker
from streams.dispatch.shares import Askers, asked


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that never changes."""

    admitted: GenerationAdmitted
    order: int
    traceparent: str | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker without what its renewals say."""

    registered: WorkerRegistered
    epoch: int
    alive: bool
    released: bool


_REQUEST = msgspec.json.Decoder(RequestRecord)
_PROGRESS = msgspec.json.Decoder(Progress)
_END = msgspec.json.Decoder(GenerationEnded)
_WORKER = msgspec.json.Decoder(WorkerRecord)


def request_key(pool: str, reply_id: str) -> str:
    return f"{pool}/{reply_id}/request"


def progress_key(pool: str, reply_id: str) -> str:
    return f"{pool}/{reply_id}/progress"


def end_key(pool: str, reply_id: str) -> str:
    return f"{pool}/{reply_id}/end"


def worker_key(pool: str, inbox: int) -> str:
    return f"{pool}/worker/{inbox}"


def request_value(request: Request) -> bytes:
    """The value of a request's record."""
    return to_json(
        RequestRecord(admitted=request.admitted, order=request.order, traceparent=request.traceparent),
    )


def worker_value(worker: Worker) -> bytes:
    """The value of a worker's record."""
    return to_json(
        WorkerRecord(registered=worker.registered, epoch=worker.epoch, alive=worker.alive, released=worker.released),
    )


def restored(values: Mapping[str, bytes], limits: Limits, flow_ms: int) -> dict[str, Pool]:
    """The pools that these records (newest value of each key) describe. All leases begin anew at `flow_ms`.

    Raises:
        msgspec.MsgspecError: a record that this program did not write.
    """
    parts: dict[str, dict[str, dict[str, bytes]]] = {}
    for key, value in values.items():
        name, subject, kind = key.rsplit("/", 2)
        parts.setdefault(name, {}).setdefault("worker" if subject == "worker" else kind, {})[
            kind if subject == "worker" else subject
        ] = value
    return {name: _pool(name, kinds, limits, flow_ms) for name, kinds in parts.items()}


def _pool(name: str, kinds: Mapping[str, Mapping[str, bytes]], limits: Limits, flow_ms: int) -> Pool:
    progress = {reply_id: _PROGRESS.decode(value) for reply_id, value in kinds.get("progress", {}).items()}
    requests = {
        reply_id: _request(_REQUEST.decode(value), progress.get(reply_id, Progress()))
        for reply_id, value in kinds.get("request", {}).items()
    }
    waiting = [request for request in requests.values() if request.progress.phase == "queued"]
    given = [request for request in requests.values() if request.progress.phase == "given"]
    return Pool(
        name=name,
        requests=requests,
        lines=queue.restored(waiting, given, limits),
        waiting=len(waiting),
        waiting_chars=sum(request.chars for request in waiting),
        running=Counter(request.admitted.account_id for request in given),
        running_of=Counter((request.admitted.model, request.admitted.account_id) for request in given),
        askers=_askers(requests.values(), flow_ms),
        workers={
            int(inbox): _worker(_WORKER.decode(value), given, limits, flow_ms)
            for inbox, value in kinds.get("worker", {}).items()
        },
        endings={reply_id: _END.decode(value) for reply_id, value in kinds.get("end", {}).items()},
        affinity=OrderedDict(
            (request.admitted.conversation_id, (request.progress.inbox, request.progress.epoch)) for request in given
        ),
    )


def _askers(requests: Iterable[Request], flow_ms: int) -> dict[str, Askers]:
    """As if all that is open had been asked for now: who asked and has nothing open any more is forgotten."""
    askers: dict[str, Askers] = {}
    for request in sorted(requests, key=lambda one: one.order):
        model = request.admitted.model
        askers[model] = asked(askers.get(model), request.admitted.account_id, flow_ms)
    return askers


def made(
    admitted: GenerationAdmitted, order: int, traceparent: str | None, progress: Progress | None = None
) -> Request:
    """A request with the blocks of its prompt."""
    text = rendered(admitted.prompt)
    return Request(
        admitted=admitted,
        order=order,
        traceparent=traceparent,
        progress=progress or Progress(),
        chars=chars_of(admitted),
        prompt_bytes=len(text),
        blocks=named(salt_of(admitted.account_id), text),
    )


def chars_of(admitted: GenerationAdmitted) -> int:
    """Size of the prompt."""
    return sum([len(message.content) for message in admitted.prompt])


def _request(record: RequestRecord, progress: Progress) -> Request:
    return made(record.admitted, record.order, record.traceparent, progress)


def _worker(record: WorkerRecord, given: Iterable[Request], limits: Limits, flow_ms: int) -> Worker:
    worker = Worker(
        registered=record.registered,
        epoch=record.epoch,
        alive=record.alive,
        released=record.released,
        renewed_flow_ms=flow_ms,
    )
    held = [
        request
        for request in given
        if (request.progress.inbox, request.progress.epoch) == (record.registered.inbox, record.epoch)
    ]
    held_tokens = sum(request.progress.kv_tokens for request in held)
    return msgspec.structs.replace(
        worker,
        held=len(held),
        held_tokens=held_tokens,
        isolated=sum(limits.is_suspect(request.progress.lost) for request in held),
        free_slots=max(0, record.registered.slots - len(held)),
        free_tokens=max(0, record.registered.kv_tokens - held_tokens),
    )
