"""One API process: `python -m api [--check]`."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Sequence

import structlog
import uvloop

from api.account_changes import AccountChanges
from api.app import create_app
from api.capacity import Capacity, raise_files_max
from api.clickhouse_views import ClickHouseViews
from api.context import Service
from api.conversations import Conversations
from api.cors import let_in
from api.edge import Edge
from api.feed import Feeds
from api.feed_response import FeedAnswers
from api.following import Streams
from api.health import Health
from api.issuer_keys import Fetch, HttpFetch, IssuerKeys
from api.issuers import Issuer, Tokens
from api.last_used import LastUsed
from api.limits_door import Door
from api.limits_spend import Spending
from api.load import YOUNG_MS, Load
from api.metrics import Metrics
from api.operator import OperatorKey
from api.prompt_tokens import PromptTokens
from api.redis_live import RedisLive
from api.redis_store import RedisStore
from api.sending import Appender, Sender
from api.server import HttpServer, listening
from api.settings import ApiSettings
from api.sse import OpenStreams
from api.stores import HotStore, StoreDown, Views
from schemas.account import Accounts
from schemas.ids import Identities
from schemas.topics import ACCOUNTS, LOAD, MESSAGES
from streams.log.compacted import CompactedReader
from streams.log.kafka.log import KafkaLog
from streams.log.log import END, Log, since
from streams.log.process import Process, main
from streams.log.steps import LogError, Partition

logger = structlog.get_logger("api")

NAME = "api"


def now_ms() -> int:
    """Wall clock, ms since the epoch."""
    return time.time_ns() // 1_000_000


async def serve(settings: ApiSettings, process: Process, listeners: Sequence[socket.socket]) -> None:
    """Wire everything, serve until a signal, close in reverse order."""
    capacity = _capacity(settings.streams_max)
    metrics = Metrics()
    ids = Identities(settings.secret.get_secret_value().encode())
    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, f"{NAME}-{settings.replica}")
    writer = log.writer(NAME, delivery_timeout_s=settings.append_timeout_s)
    accounts = Accounts()
    accounts_reader = CompactedReader(log, ACCOUNTS.name, accounts.apply)
    load = Load()
    load_reader = CompactedReader(log, LOAD.name, load.apply, start=since(now_ms() - YOUNG_MS))
    redis_url = settings.redis_url.get_secret_value()
    hot = RedisStore(redis_url, settings.namespace, metrics)
    live = RedisLive(redis_url, settings.namespace, metrics)
    views = ClickHouseViews(settings.clickhouse_url.get_secret_value(), settings.database, metrics)
    health = Health(accounts_reader, hot, live, views)
    open_streams = OpenStreams(settings.patience, metrics, capacity.streams)
    appender = Appender(writer, settings.append_timeout_s + 1.0)
    conversations = Conversations(ids=ids, appender=appender, hot=hot, views=views, now_ms=now_ms)
    used = LastUsed(hot, now_ms)
    fetch = HttpFetch()
    tokens = _tokens(settings.jwt_issuers, fetch, metrics)
    spending = Spending(views, metrics, now_ms, asyncio.get_running_loop().time)
    service = Service(
        ids=ids,
        models=settings.served,
        tiers=settings.tiers,
        accounts=accounts,
        sender=Sender(
            ids=ids,
            models=settings.served,
            appender=appender,
            hot=hot,
            views=views,
            load=load,
            door=_door(settings, hot, views, spending, metrics),
            metrics=metrics,
            now_ms=now_ms,
        ),
        conversations=conversations,
        streams=Streams(
            hot=hot,
            live=live,
            views=views,
            open_streams=open_streams,
            patience=settings.patience,
            now_s=asyncio.get_running_loop().time,
            now_ms=now_ms,
        ),
        feeds=FeedAnswers(
            conversations=conversations, feeds=Feeds(views), open_streams=open_streams, patience=settings.patience
        ),
        hot=hot,
        views=views,
        spending=spending,
        health=health,
        metrics=metrics,
        ticket_ms=settings.ticket_s * 1000,
        now_ms=now_ms,
        used=used,
        tokens=tokens,
        changes=AccountChanges(appender, accounts),
        prices=settings.prices,
        operator=OperatorKey(settings.operator_key.get_secret_value()) if settings.operator_key is not None else None,
    )
    app = let_in(Edge(create_app(service), metrics, hidden=service.hidden), settings.origins)
    servers = [HttpServer(app, listener, capacity.connections) for listener in listeners]
    accounts_reader.start()
    load_reader.start()
    keepers = [
        asyncio.create_task(work)
        for work in (
            live.keep(),
            open_streams.keep(),
            health.keep(lambda missing: _report(process, missing)),
            begin_claims(log, hot),
            used.keep(),
            tokens.keep(),
        )
    ]
    serving = [asyncio.create_task(server.serve()) for server in servers]
    logger.info("serving", address=f"http://{settings.api_host}:{settings.api_port}")
    try:
        await _stopped(process, serving)
    finally:
        health.stopping = True
        # No connection is taken from now on; those that are open end with the answer that they are in.
        for server in servers:
            server.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.shutdown_s):
                await open_streams.stop(settings.shutdown_s)
                await asyncio.gather(*serving)
        for keeper in reversed(keepers):
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await tokens.close()
        await fetch.close()
        await views.close()
        await hot.close()
        await asyncio.to_thread(load_reader.close)
        await asyncio.to_thread(accounts_reader.close)
        await asyncio.to_thread(log.close)


def _tokens(issuers: Sequence[Issuer], fetch: Fetch, metrics: Metrics) -> Tokens:
    def told(issuer: str, outcome: str) -> None:
        metrics.issuer_fetches.labels(issuer, outcome).inc()

    return Tokens([(one, IssuerKeys(one.issuer, one.jwks_url, fetch, time.monotonic, told)) for one in issuers])


def _door(settings: ApiSettings, hot: HotStore, views: Views, spending: Spending, metrics: Metrics) -> Door:
    prompt_tokens = PromptTokens(settings.tokenizers)
    prompt_tokens.start()
    return Door(
        hot=hot,
        views=views,
        prompt_tokens=prompt_tokens,
        spending=spending,
        policy=settings.limit_policy,
        metrics=metrics,
        now_ms=now_ms,
    )


async def begin_claims(log: Log, hot: HotStore) -> None:
    """Note since when claims are complete: in a deployment that is new from the first message on, else from now."""
    while True:
        try:
            await hot.claims_begin(0 if await asyncio.to_thread(_is_empty, log) else now_ms())
        except (LogError, StoreDown) as error:
            logger.info("beginning of claims not noted yet", reason=str(error))
            await asyncio.sleep(1.0)
        else:
            return


def _is_empty(log: Log) -> bool:
    partitions = [Partition(MESSAGES.name, number) for number in range(log.partitions(MESSAGES.name))]
    reader = log.reader(partitions, END)
    try:
        return not any(reader.ends().values())
    finally:
        reader.close()


def _report(process: Process, missing: Sequence[str]) -> None:
    process.turned(detail=f"missing: {', '.join(missing)}" if missing else "", degraded=bool(missing))


async def _stopped(process: Process, serving: "Sequence[asyncio.Task[None]]") -> None:
    stopped = asyncio.create_task(asyncio.to_thread(process.stop.wait))
    await asyncio.wait((stopped, *serving), return_when=asyncio.FIRST_COMPLETED)
    process.stop.set()
    for one in serving:
        if one.done():
            one.result()


def _capacity(streams_max: int) -> Capacity:
    files_max = raise_files_max()
    capacity = Capacity.of(streams_max, files_max)
    if capacity.streams < streams_max:
        logger.warning(
            "fewer streams than set: the limit of open files (ulimit -n) is too low",
            files_max=files_max,
            streams_max=capacity.streams,
            set_to=streams_max,
        )
    return capacity


def _listening(host: str, port: int, setting: str) -> socket.socket:
    try:
        return listening(host, port)
    except OSError as error:
        raise SystemExit(
            f"api: cannot listen on {host}:{port}: {error.strerror}. Stop what uses it, or set {setting}."
        ) from error


def run(settings: ApiSettings, process: Process) -> None:
    """Serve on uvloop. Exits with one sentence where an address cannot be listened on."""
    listeners = [_listening(settings.api_host, settings.api_port, "TURNLOG_API_PORT")]
    if settings.api_own_port is not None:
        listeners.append(_listening(settings.api_host, settings.api_own_port, "TURNLOG_API_OWN_PORT"))
    uvloop.run(serve(settings, process, listeners))


if __name__ == "__main__":
    sys.exit(main(NAME, ApiSettings, run, sys.argv[1:]))
