"""The topics fit together: what is read in one partition of two topics has one count."""

import re

import pytest

from schemas.catalogue import main
from schemas.events import EVENTS
from schemas.topics import (
    CANCELLATIONS,
    CONVERSATIONS,
    FIXED,
    MESSAGES,
    PARKED,
    POOLS,
    REQUESTS,
    WORKERS,
    all_topics,
    dead,
    inference,
)
from schemas.values import PRIORITIES


@pytest.mark.parametrize("group", [(MESSAGES, CANCELLATIONS, CONVERSATIONS), (REQUESTS, WORKERS, POOLS)])
def test_topics_that_one_step_reads_and_writes_have_one_partition_count(group):
    assert len({topic.partitions for topic in group}) == 1
    assert len({topic.partitions_production for topic in group}) == 1


def test_state_topics_are_compacted_and_transactional():
    for topic in (CONVERSATIONS, POOLS):
        assert topic.cleanup == "compact"
        assert topic.transactional


def test_every_events_topic_is_declared():
    names = {topic.name for topic in (*FIXED, PARKED)}
    assert {cls.TOPIC for cls in EVENTS} - names == {None}


def test_names_are_unique_and_legal_for_the_broker():
    names = [topic.name for topic in all_topics(("default", "large-1"))]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", name) for name in names)


def test_a_pool_has_an_inbox_topic_a_priority_with_one_partition_count():
    boxes = [inference("default", priority) for priority in PRIORITIES]
    assert {box.name for box in boxes} <= {topic.name for topic in all_topics(("default",))}
    assert len({box.partitions for box in boxes}) == 1
    assert all(box.transactional for box in boxes)


def test_every_topic_that_a_loop_reads_has_dead_letters():
    names = {topic.name for topic in all_topics(())}
    assert {dead(topic.name).name for topic in FIXED if topic.cleanup == "delete"} <= names


def test_no_partition_count_is_smaller_in_production():
    assert all(topic.partitions <= topic.partitions_production for topic in all_topics(("default",)))


def test_the_documents_say_what_the_code_says(request):
    assert main([str(request.config.rootpath / "docs"), "--check"]) == 0


def test_a_stale_document_is_noticed_and_written_anew(tmp_path):
    assert main([str(tmp_path), "--check"]) == 1
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--check"]) == 0
    (tmp_path / "events.md").write_text("old")
    assert main([str(tmp_path), "--check"]) == 1
