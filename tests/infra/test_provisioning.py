"""Provisioning on the real servers."""

import time
from dataclasses import replace

import pytest
from deployment import Deployment

from infra.accounts import demo_events
from infra.data_folder import DemoAccount
from infra.errors import ProvisioningRefused
from infra.kafka_admin import KafkaAdmin
from infra.log_append import append
from infra.provisioning import provision, provision_topics, topics_of
from schemas.codec import decode
from schemas.events import AccountOpened, KeyIssued, LimitsChanged
from schemas.ids import key_hash
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Partition

pytestmark = pytest.mark.servers


def test_provisioning_twice_changes_nothing_the_second_time(deployment: Deployment) -> None:
    first = provision(deployment.settings())
    assert {name.removeprefix(f"{deployment.namespace}.") for name in first.topics_created} == {
        topic.name for topic in topics_of(deployment.settings())
    }
    second = provision(deployment.settings())
    assert second.topics_created == second.topics_changed == second.migrations_applied == ()
    assert second.topics_kept == len(first.topics_created)


def test_every_partition_can_be_written_when_provisioning_returns(deployment: Deployment) -> None:
    provision_topics(deployment.settings())
    topics = KafkaAdmin(deployment.kafka_bootstrap).topics()
    ours = [topic for name, topic in topics.items() if name.startswith(f"{deployment.namespace}.")]
    assert ours
    assert not any(topic.leaderless for topic in ours)


def test_a_topic_with_another_partition_count_is_refused(deployment: Deployment) -> None:
    admin = KafkaAdmin(deployment.kafka_bootstrap)
    admin.create_all([(deployment.topic("tokens"), 3, {})], 1)
    admin.await_leaders(frozenset({deployment.topic("tokens")}))
    with pytest.raises(ProvisioningRefused, match="tokens has 3 partitions"):
        provision_topics(deployment.settings())
    assert deployment.topic("messages") not in admin.topics(), "nothing is done when something is refused"


def test_a_changed_retention_is_applied(deployment: Deployment) -> None:
    provision_topics(deployment.settings())
    admin = KafkaAdmin(deployment.kafka_bootstrap)
    tokens = deployment.topic("tokens")
    admin.change_settings(tokens, {"retention.ms": "1000"})
    deadline = time.monotonic() + 10
    while admin.settings([tokens])[tokens]["retention.ms"] != "1000":
        assert time.monotonic() < deadline, "the broker applies a change of settings a moment later"
    _, changed, _ = provision_topics(deployment.settings())
    assert changed == (tokens,)


def test_two_namespaces_do_not_meet(deployment: Deployment) -> None:
    other = replace(deployment, namespace=f"{deployment.namespace}-other")
    try:
        provision_topics(deployment.settings())
        created, _, _ = provision_topics(other.settings())
        assert all(name.startswith(f"{other.namespace}.") for name in created)
    finally:
        other.remove()


def test_the_demo_account_is_in_the_log_with_the_hash_of_its_key(deployment: Deployment) -> None:
    provision_topics(deployment.settings())
    demo = DemoAccount("demo", "key_x", "tlk_secret", 1_000)
    append(deployment.kafka_bootstrap, deployment.namespace, demo_events(demo))
    log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "test")
    try:
        reader = log.reader([Partition("accounts", 0)], BEGINNING)
        records, deadline = reader.poll(5.0), time.monotonic() + 10
        while len(records) < 3 and time.monotonic() < deadline:
            records += reader.poll(1.0)
    finally:
        log.close()
    assert not any(b"tlk_secret" in (record.value or b"") for record in records)
    events = [decode(record.value, record.headers).event for record in records]
    assert [type(event) for event in events] == [AccountOpened, KeyIssued, LimitsChanged]
    assert isinstance(events[1], KeyIssued)
    assert events[1].key_hash == key_hash("tlk_secret")
