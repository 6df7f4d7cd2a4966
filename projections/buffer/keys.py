"""Names in Redis of the stream buffer. All keys of a reply share the hash tag `{reply_id}`: one slot of a cluster.

| name | is |
|---|---|
| `<namespace>:{<reply_id>}:frames` | list of the finished SSE frames; the frame of offset n is item n-1 |
| `<namespace>:{<reply_id>}:head` | hash: `status`, `attempt`, `model`, `conversation_id`, `account_id`, ... |
| `<namespace>:{<reply_id>}:live` | sharded channel: `<first>-<last>\\n`, then the frames of these offsets |
| `<namespace>:marker:<partition>` | hash: the store's `name` and the `position` in `tokens` that it holds |
"""


def frames(namespace: str, reply_id: str) -> bytes:
    """Key of the list of frames."""
    return f"{namespace}:{{{reply_id}}}:frames".encode()


def head(namespace: str, reply_id: str) -> bytes:
    """Key of the reply's state."""
    return f"{namespace}:{{{reply_id}}}:head".encode()


def live(namespace: str, reply_id: str) -> bytes:
    """Channel of what is appended."""
    return f"{namespace}:{{{reply_id}}}:live".encode()


def marker(namespace: str, partition: int) -> bytes:
    """Key of a partition's marker."""
    return f"{namespace}:marker:{partition}".encode()
