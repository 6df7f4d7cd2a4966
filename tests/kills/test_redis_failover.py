"""Redis fails over to a replica that lacks the newest writes, while replies run and are read."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from system.product import Product, Seen, eventually

from tests.kills.switch import Switch
from tests.projections.valkey import Valkey

pytestmark = [pytest.mark.system, pytest.mark.kills, pytest.mark.timeout(300)]

CHUNKS = 300


def test_a_replica_that_lacks_the_newest_writes_takes_over_and_no_reader_misses_an_event(tmp_path: Path) -> None:
    primary, replica = (Valkey(folder(tmp_path, name)) for name in ("primary", "replica"))
    primary.start()
    replica.start()
    replica.client.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))
    eventually("the replica follows", lambda: replica.client.info("replication")["master_link_status"] == "up")
    with Switch(primary.port) as redis:
        env = {"TURNLOG_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0"}
        product = Product(tmp_path / "product", "--engine", "scripted", "--api", "2", env=env)
        try:
            client = product.client()
            sent = [client.send({"chunks": CHUNKS, "every_ms": 40}) for _ in range(4)]
            ids = [one["reply"]["id"] for one in sent]
            with ThreadPoolExecutor(len(ids)) as readers:
                reading = [readers.submit(product.client().read, reply_id) for reply_id in ids]
                eventually("they run", lambda: all(client.message(one)["offset"] > 20 for one in ids))
                replica.client.execute_command("REPLICAOF", "NO", "ONE")
                behind = client.message(ids[0])["offset"]
                eventually("the replica lacks writes", lambda: client.message(ids[0])["offset"] > behind + 25)
                redis.lead_to(None)
                primary.kill()
                redis.lead_to(replica.port)
                seen: list[Seen] = [one.result(120) for one in reading]
            for reply_id, one in zip(ids, seen, strict=True):
                assert one.end is not None
                assert (one.end["status"], one.attempt) == ("completed", 1)
                assert one.end["usage"]["output_tokens"] == CHUNKS
                eventually("it is stored as it was seen", lambda r=reply_id, s=one: client.message(r)["text"] == s.text)
                again = client.read(reply_id)
                assert again.frames == one.frames, "the rebuilt buffer has the same bytes"
        finally:
            product.close()
            replica.kill()


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name
