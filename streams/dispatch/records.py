"""State records of dispatch: a pool to records and back.

Keys: `<pool>/<reply_id>/request` (written once: the admission), `<pool>/<reply_id>/progress` (absent: waiting, first
attempt), `<pool>/<reply_id>/end` (an end that may not be in `tokens` yet), `<pool>/worker/<inbox>`.
"""

import heapq
from collections.abc import Iterable, Mapping

import msgspec

from schemas.codec import to_json
from schemas.events import GenerationAdmitted, GenerationEnded, WorkerRegistered
from streams.dispatch.pool import ModelQueue, Place, Pool, Progress, Request, Worker, tokens_held


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


def restored(values: Mapping[str, bytes], flow_ms: int) -> dict[str, Pool]:
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
    return {name: _pool(name, kinds, flow_ms) for name, kinds in parts.items()}


def _pool(name: str, kinds: Mapping[str, Mapping[str, bytes]], flow_ms: int) -> Pool:
    progress = {reply_id: _PROGRESS.decode(value) for reply_id, value in kinds.get("progress", {}).items()}
    requests = {
        reply_id: _request(_REQUEST.decode(value), progress.get(reply_id, Progress()))
        for reply_id, value in kinds.get("request", {}).items()
    }
    waiting = [request for request in requests.values() if request.progress.phase == "queued"]
    return Pool(
        name=name,
        requests=requests,
        queues=_queues(waiting),
        waiting=len(waiting),
        waiting_chars=sum(request.chars for request in waiting),
        workers={
            int(inbox): _worker(_WORKER.decode(value), requests.values(), flow_ms)
            for inbox, value in kinds.get("worker", {}).items()
        },
        endings={reply_id: _END.decode(value) for reply_id, value in kinds.get("end", {}).items()},
        affinity={
            request.admitted.conversation_id: request.progress.inbox
            for request in requests.values()
            if request.progress.phase == "given"
        },
    )


def _request(record: RequestRecord, progress: Progress) -> Request:
    return Request(admitted=record.admitted, order=record.order, traceparent=record.traceparent, progress=progress)


def _queues(waiting: Iterable[Request]) -> dict[ModelQueue, list[Place]]:
    queues: dict[ModelQueue, list[Place]] = {}
    for request in waiting:
        queue = queues.setdefault((request.admitted.model, request.admitted.priority), [])
        heapq.heappush(queue, (request.order, request.admitted.reply_id))
    return queues


def _worker(record: WorkerRecord, requests: Iterable[Request], flow_ms: int) -> Worker:
    worker = Worker(
        registered=record.registered,
        epoch=record.epoch,
        alive=record.alive,
        released=record.released,
        renewed_flow_ms=flow_ms,
    )
    given = [
        request
        for request in requests
        if request.progress.phase == "given"
        and (request.progress.inbox, request.progress.epoch) == (record.registered.inbox, record.epoch)
    ]
    held_tokens = sum(tokens_held(worker, request) for request in given)
    return msgspec.structs.replace(
        worker,
        held=len(given),
        held_tokens=held_tokens,
        free_slots=max(0, record.registered.slots - len(given)),
        free_tokens=max(0, record.registered.kv_tokens - held_tokens),
    )
