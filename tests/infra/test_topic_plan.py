"""Which topics provisioning creates, changes and refuses."""

from infra.topic_plan import Declared, Present, declare, plan
from schemas.models import DEFAULT_MODELS
from schemas.topics import all_topics

DECLARED = declare(
    all_topics(tuple(model.pool for model in DEFAULT_MODELS)), namespace="turnlog", production=False, replication=1
)


def as_present(topics: tuple[Declared, ...]) -> dict[str, Present]:
    return {topic.name: Present(topic.partitions, topic.settings) for topic in topics}


def test_an_empty_cluster_gets_every_topic() -> None:
    todo = plan(DECLARED, {})
    assert todo.create == DECLARED
    assert not todo.change
    assert not todo.refusals


def test_a_cluster_as_declared_is_left_alone() -> None:
    todo = plan(DECLARED, as_present(DECLARED))
    assert not (todo.create)
    assert not (todo.change)
    assert not (todo.refusals)


def test_another_partition_count_is_refused_by_name() -> None:
    present = as_present(DECLARED)
    present["turnlog.tokens"] = Present(99, {})
    todo = plan(DECLARED, present)
    (sentence,) = todo.refusals
    assert sentence.startswith("turnlog.tokens has 99 partitions")


def test_another_retention_is_changed_and_nothing_else() -> None:
    present = as_present(DECLARED)
    tokens = present["turnlog.tokens"]
    present["turnlog.tokens"] = Present(tokens.partitions, {**tokens.settings, "retention.ms": "1"})
    (change,) = plan(DECLARED, present).change
    assert change.name == "turnlog.tokens"
    assert set(change.settings) == {"retention.ms"}


def test_compacted_topics_are_kept_for_ever() -> None:
    compacted = [topic for topic in DECLARED if topic.settings["cleanup.policy"] == "compact"]
    assert {topic.settings["retention.ms"] for topic in compacted} == {"-1"}
    assert "turnlog.accounts" in {topic.name for topic in compacted}


def test_production_has_more_partitions_and_copies() -> None:
    large = declare(all_topics(("default",)), namespace="big", production=True, replication=3)
    tokens = next(topic for topic in large if topic.name == "big.tokens")
    assert tokens.partitions == 128
    assert tokens.settings["min.insync.replicas"] == "2"
