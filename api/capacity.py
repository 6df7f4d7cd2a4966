"""How many streams and connections a process takes, by its settings and by the files that the system lets it open."""

import resource

import msgspec

FILES_OF_OUR_OWN = 256
"""For Kafka, Redis, ClickHouse, logs and libraries."""
REQUESTS_BESIDE_STREAMS = 2_000


class Capacity(msgspec.Struct, frozen=True):
    """What a process takes at one time."""

    streams: int
    connections: int

    @classmethod
    def of(cls, streams_max: int, files_max: int) -> "Capacity":
        """As many as are set, or as fit: each connection is an open file, and some are kept for other requests."""
        connections = max(2, min(streams_max + REQUESTS_BESIDE_STREAMS, files_max - FILES_OF_OUR_OWN))
        beside = max(1, min(REQUESTS_BESIDE_STREAMS, connections // 10))
        return cls(min(streams_max, connections - beside), connections)


def raise_files_max() -> int:
    """Let this process open as many files as the system allows; how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**31
