"""Consumer groups, as a coordinator keeps them.

Rules:

1. A member has a name; a newcomer of the same name takes its place and the one before is fenced.
2. The group says what each member shall have (`target`). A member gives up what it has too much when it polls, and
   gets what it lacks when nobody else has it.
3. Offsets are taken from the owner of a partition only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from streams.log.log import Assignment
from streams.log.steps import Partition


class Member(Protocol):
    """What a group knows of its members."""

    name: str
    topics: tuple[str, ...]


class Group:
    """One group."""

    def __init__(self, assignment: Assignment, counts: Mapping[str, int]) -> None:
        self._assignment: Assignment = assignment
        self._counts = dict(counts)
        self._members: dict[str, Member] = {}
        self._owners: dict[Partition, Member] = {}
        self._target: dict[str, frozenset[Partition]] = {}
        self._unsettled: set[str] = set()
        self.committed: dict[Partition, int] = {}

    def join(self, member: Member) -> None:
        """A member comes, or comes back."""
        before = self._members.get(member.name)
        self._members[member.name] = member
        if before is not None and before is not member:
            self._release(before)
        if before is None or before.topics != member.topics:
            self._share()

    def leave(self, member: Member) -> None:
        """A member goes, of its own will or because its session is over."""
        if self._members.get(member.name) is member:
            del self._members[member.name]
            self._release(member)
            self._share()

    def named(self, name: str) -> Member | None:
        """The member of a name."""
        return self._members.get(name)

    def shake(self) -> None:
        """Everybody gives up everything at its next poll, and gets it back."""
        self._unsettled = set(self._members)

    def owned(self, member: Member) -> set[Partition]:
        """What a member has."""
        return {partition for partition, owner in self._owners.items() if owner is member}

    def to_revoke(self, member: Member) -> list[Partition]:
        """What a member has to give up now."""
        owned = self.owned(member)
        kept = frozenset() if member.name in self._unsettled else self._target[member.name]
        return sorted(owned - kept)

    def revoked(self, member: Member, partitions: Iterable[Partition]) -> None:
        """The member has given these up."""
        for partition in partitions:
            if self._owners.get(partition) is member:
                del self._owners[partition]
        self._unsettled.discard(member.name)

    def to_assign(self, member: Member) -> list[Partition]:
        """What a member gets now; it is the owner from here on."""
        free = [partition for partition in sorted(self._target[member.name]) if partition not in self._owners]
        if self._assignment == "together":
            taken = {partition.number for partition, owner in self._owners.items() if owner is not member}
            free = [partition for partition in free if partition.number not in taken]
        self._owners.update(dict.fromkeys(free, member))
        return free

    def commit(self, member: Member, offsets: Mapping[Partition, int]) -> bool:
        """Take offsets; whether the member may commit them."""
        if any(self._owners.get(partition) is not member for partition in offsets):
            return False
        self.committed.update(offsets)
        return True

    def _release(self, member: Member) -> None:
        for partition in self.owned(member):
            del self._owners[partition]
        self._unsettled.discard(member.name)

    def _share(self) -> None:
        names = sorted(self._members)
        topics = sorted({topic for member in self._members.values() for topic in member.topics})
        if not names:
            self._target = {}
        elif self._assignment == "together":
            self._target = _together(names, topics, self._counts)
        else:
            held = {name: self.owned(member) for name, member in self._members.items()}
            self._target = _sticky(names, topics, self._counts, held)


def _together(
    names: Sequence[str], topics: Sequence[str], counts: Mapping[str, int]
) -> dict[str, frozenset[Partition]]:
    target: dict[str, set[Partition]] = {name: set() for name in names}
    for topic in topics:
        per_member, more = divmod(counts[topic], len(names))
        number = 0
        for at, name in enumerate(names):
            for _ in range(per_member + (at < more)):
                target[name].add(Partition(topic, number))
                number += 1
    return {name: frozenset(partitions) for name, partitions in target.items()}


def _sticky(
    names: Sequence[str], topics: Sequence[str], counts: Mapping[str, int], held: Mapping[str, set[Partition]]
) -> dict[str, frozenset[Partition]]:
    every = [Partition(topic, number) for topic in topics for number in range(counts[topic])]
    at_most = -(-len(every) // len(names))
    target = {name: set(sorted(held[name])[:at_most]) for name in names}
    taken = {partition for partitions in target.values() for partition in partitions}
    for partition in every:
        if partition not in taken:
            min(target.values(), key=len).add(partition)
    return {name: frozenset(partitions) for name, partitions in target.items()}
