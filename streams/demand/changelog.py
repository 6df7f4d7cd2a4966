"""A table's changelog topic, made and waited for before the application starts.

Faust would make it by itself, but for a moment a new topic shows only some of its partitions, and Faust remembers that
count for a minute, in which it refuses to write the table.
"""

import asyncio
import time
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from streams.log.steps import LogError

WAIT_S = 30.0


async def ensure(bootstrap: str, topic: str, like: str, retention_s: float | None) -> None:
    """The topic exists, and each of its partitions has a leader.

    Args:
        bootstrap: addresses of the brokers.
        topic: full name of the changelog.
        like: full name of a topic with as many partitions and replicas.
        retention_s: how long its records count; None: the newest of each key counts for ever.

    Raises:
        LogError: not within `WAIT_S`, or the broker refuses.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    deadline = time.monotonic() + WAIT_S
    try:
        await admin.start()
        replicas = [len(partition["replicas"]) for partition in await _described(admin, like)]
        partitions = len(replicas)
        await _create(admin, NewTopic(topic, partitions, replicas[0], topic_configs=_settings(retention_s)))
        while not await _has_leaders(admin, topic, partitions):
            if time.monotonic() > deadline:
                raise LogError(f"{topic} has no leaders for its {partitions} partitions")
            await asyncio.sleep(0.1)
    except KafkaError as error:
        raise LogError(f"{topic} could not be made: {error}") from error
    finally:
        await admin.close()


def _settings(retention_s: float | None) -> dict[str, str]:
    if retention_s is None:
        # Small segments: only what is in an old one is compacted, and a start reads all that is not.
        return {"cleanup.policy": "compact", "segment.ms": "3600000", "segment.bytes": "16777216"}
    return {"cleanup.policy": "compact,delete", "retention.ms": str(max(round(retention_s * 1000), 3_600_000))}


async def _create(admin: AIOKafkaAdminClient, wanted: NewTopic) -> None:
    answer = await admin.create_topics([wanted])
    for _, code, detail in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise error(detail)


async def _has_leaders(admin: AIOKafkaAdminClient, topic: str, partitions: int) -> bool:
    return sum(1 for partition in await _described(admin, topic) if partition["leader"] >= 0) == partitions


async def _described(admin: AIOKafkaAdminClient, topic: str) -> list[dict[str, Any]]:
    [described] = await admin.describe_topics([topic])
    return list(described["partitions"])
