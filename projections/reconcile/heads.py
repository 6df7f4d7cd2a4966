"""The roll-up `conversation_heads` against the log, as its readers see it: the view `conversations`.

What is in it is a union that repetitions do not change, of rows that were compared before. So a repair makes them feed
it once more; where that does not help, it is emptied of the conversation first.
"""

from collections.abc import Callable, Sequence

from projections.clickhouse.client import Database
from projections.clickhouse.compare import Change, Digest, Part, parts
from projections.reconcile.findings import Finding, Outcome, Tell
from projections.reconcile.tail import Conversation

VIEW = "conversations"
ROLL_UP = "conversation_heads"
FEEDERS = ("conversation_heads_from_messages", "conversation_heads_from_replies", "conversation_heads_from_changes")
_FEEDING = ("message_rows", "reply_rows", "conversation_rows")
_SHOWN = ("created_at", "updated_at", "title", "message_count")
_GROUP = "modulo(cityHash64(conversation_id), 64)"
_HASH = f"sum(cityHash64(account_id, conversation_id, {', '.join(_SHOWN)}))"
AT_ONCE = 500
ROUNDS = 3

Differing = tuple[Conversation, str, tuple[Change, ...]]
Active = Callable[[Sequence[Conversation]], Sequence[bool]]


def compare_heads(
    database: Database, right: str, active: Active, outcome: Outcome, tell: Tell, *, repair: bool
) -> None:
    """Compare with the view `right`, leaving out conversations in which something was done meanwhile.

    Raises:
        ClickHouseError, LogError: not now.
    """
    right_digests = _digests(database, right)
    for tried in range(ROUNDS if repair else 1):
        live_digests = _digests(database, VIEW)
        if not tried:
            outcome.rows += sum(digest.rows for digest in live_digests.values())
        left = 0
        for part in parts(live_digests, right_digests):
            found = _differing(database, right, part)
            is_active = active([one for one, _, _ in found])
            wrong = [one for one, spared in zip(found, is_active, strict=True) if not spared]
            left += len(wrong)
            for conversation, kind, changes in wrong if not tried else ():
                tell(Finding(table=ROLL_UP, kind=kind, key=conversation, changes=changes))
            if repair:
                _feed(database, [one for one, _, _ in wrong], empty_first=tried > 0)
        outcome.found += 0 if tried else left
        if not left:
            break
    outcome.left += left


def _digests(database: Database, view: str) -> dict[str, Digest]:
    found = database.query(f"SELECT toString({_GROUP}) AS g, count(), {_HASH} FROM {view} GROUP BY g")  # noqa: S608
    return {group: Digest(int(count), int(total)) for group, count, total in found}


def _differing(database: Database, right: str, part: Part) -> list[Differing]:
    within = (
        f"{_GROUP} = {int(part.group)} AND modulo(cityHash64(account_id, conversation_id), {part.of}) = {part.number}"
    )
    side = f"(SELECT account_id, conversation_id, {', '.join(_SHOWN)}, 1 AS here FROM {{view}} WHERE {within})"  # noqa: S608
    changed = ", ".join(f"('{name}', {_told('l', name)}, {_told('r', name)})" for name in _SHOWN)
    found = database.query(
        "SELECT if(l.here = 1, l.account_id, r.account_id), if(l.here = 1, l.conversation_id, r.conversation_id), "  # noqa: S608
        f"l.here, r.here, if(l.here + r.here < 2, [], arrayFilter(c -> c.2 != c.3, [{changed}])) AS changes "
        f"FROM {side.format(view=VIEW)} AS l FULL OUTER JOIN {side.format(view=right)} AS r "
        "ON l.account_id = r.account_id AND l.conversation_id = r.conversation_id "
        "WHERE l.here != r.here OR notEmpty(changes) ORDER BY 1, 2 SETTINGS join_use_nulls = 0"
    )
    return [
        ((account, conversation), _kind(live_here, right_here), tuple(Change(*change) for change in changes))
        for account, conversation, live_here, right_here, changes in found
    ]


def _told(side: str, column: str) -> str:
    if column == "title":
        return f"concat(toString(lengthUTF8({side}.title)), ' characters, ', hex(cityHash64({side}.title)))"
    return f"toString({side}.{column})"


def _kind(live_here: int, right_here: int) -> str:
    if live_here and right_here:
        return "changed"
    return "extra" if live_here else "missing"


def _feed(database: Database, wrong: Sequence[Conversation], *, empty_first: bool) -> None:
    for first in range(0, len(wrong), AT_ONCE):
        some = wrong[first : first + AT_ONCE]
        if empty_first:
            database.delete(ROLL_UP, some)
        for table in _FEEDING:
            database.command(
                f"INSERT INTO {table} SELECT * FROM {table} FINAL "  # noqa: S608 - names are ours
                "WHERE (account_id, conversation_id) IN %(conversations)s",
                {"conversations": list(some)},
            )
