"""Creates or checks everything that the processes expect on the three servers. Idempotent."""

from __future__ import annotations

from dataclasses import dataclass

from infra.errors import ProvisioningRefused, StackError
from infra.kafka_admin import KafkaAdmin
from infra.settings import ProvisionSettings
from infra.topic_plan import Present, declare, plan
from projections.clickhouse import migrations
from projections.clickhouse.client import ClickHouseError
from projections.redis import functions
from projections.redis.client import StoreError
from schemas.models import DEFAULT_MODELS, parse_models
from schemas.topics import Topic, all_topics


@dataclass(frozen=True)
class Provisioned:
    """What was done, for the person who asked."""

    topics_created: tuple[str, ...]
    topics_changed: tuple[str, ...]
    topics_kept: int
    migrations_applied: tuple[str, ...]
    functions_loaded: tuple[str, ...]


def provision(settings: ProvisionSettings) -> Provisioned:
    """Topics, tables and functions of one namespace. Raises StackError."""
    created, changed, kept = provision_topics(settings)
    return Provisioned(
        topics_created=created,
        topics_changed=changed,
        topics_kept=kept,
        migrations_applied=_apply_migrations(settings),
        functions_loaded=_load_functions(settings),
    )


def topics_of(settings: ProvisionSettings) -> tuple[Topic, ...]:
    """The topics that a deployment with these models has."""
    models = parse_models(settings.models) if settings.models else DEFAULT_MODELS
    return all_topics(tuple(dict.fromkeys(model.pool for model in models)))


def provision_topics(settings: ProvisionSettings) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Create or adapt the topics and wait for their leaders; names created, names changed, number kept.

    Raises ProvisioningRefused when a partition count would have to change.
    """
    declared = declare(
        topics_of(settings),
        namespace=settings.namespace,
        production=settings.size == "production",
        replication=settings.replication,
    )
    admin = KafkaAdmin(settings.kafka_bootstrap)
    known = admin.topics()
    there = [topic.name for topic in declared if topic.name in known]
    in_force = admin.settings(there)
    present = {name: Present(known[name].partitions, in_force[name]) for name in there}
    todo = plan(declared, present)
    if todo.refusals:
        raise ProvisioningRefused("\n".join(todo.refusals))
    admin.create_all([(topic.name, topic.partitions, topic.settings) for topic in todo.create], settings.replication)
    for topic in todo.change:
        admin.change_settings(topic.name, topic.settings)
    admin.await_leaders(frozenset(topic.name for topic in declared))
    created = tuple(topic.name for topic in todo.create)
    changed = tuple(topic.name for topic in todo.change)
    return created, changed, len(declared) - len(created) - len(changed)


def _apply_migrations(settings: ProvisionSettings) -> tuple[str, ...]:
    try:
        return migrations.apply(settings.clickhouse_url, settings.database)
    except ClickHouseError as failure:
        raise StackError(f"ClickHouse at {settings.clickhouse_url} could not be prepared: {failure}") from failure


def _load_functions(settings: ProvisionSettings) -> tuple[str, ...]:
    try:
        return functions.load(settings.redis_url)
    except StoreError as failure:
        raise StackError(f"Redis at {settings.redis_url} could not be prepared: {failure}") from failure
