"""The local broker."""

from infra.kafka_server import new_cluster_id


def test_no_cluster_id_looks_like_an_option() -> None:
    ids = [new_cluster_id() for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert all(len(text) == 22 and not text.startswith("-") for text in ids)
