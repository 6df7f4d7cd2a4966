"""What was once written to a log is read today, and means what it meant."""

import msgspec
import pytest

from schemas.codec import Headers, decode, encode, event_class
from schemas.events import EVENTS
from tests.schemas.golden_files import Case, files, path_of

GOLDEN = [
    pytest.param(name, version, case, id=f"{name}.v{version}-{number}")
    for name, version, cases in files()
    for number, case in enumerate(cases)
]


def headers_of(case: Case) -> Headers:
    return [(name, header.encode()) for name, header in case.headers]


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_every_event_version_has_golden_bytes(cls):
    assert path_of(cls).exists(), "run python -m tests.schemas.golden_files and commit the new file"


@pytest.mark.parametrize(("name", "version", "case"), GOLDEN)
def test_golden_bytes_decode_to_the_event_that_was_written(name, version, case):
    cls = event_class(name)
    event = decode(case.value.encode(), headers_of(case)).event
    assert type(event) is cls
    members = msgspec.to_builtins(event)
    kept = members if version == cls.VERSION else common(members, case.members)
    want = case.members if version == cls.VERSION else common(case.members, members)
    assert msgspec.json.encode(kept) == msgspec.json.encode(want)


def common(members: object, others: object) -> object:
    """The members that the others have too, at any depth, in the others' order or their own."""
    if isinstance(members, list | tuple) and isinstance(others, list | tuple) and len(members) == len(others):
        return [common(member, other) for member, other in zip(members, others, strict=True)]
    if not (isinstance(members, dict) and isinstance(others, dict)):
        return members
    return {key: common(members[key], others[key]) for key in sorted(members.keys() & others.keys())}


@pytest.mark.parametrize(("name", "version", "case"), GOLDEN)
def test_todays_version_is_written_as_the_golden_bytes(name, version, case):
    if version != event_class(name).VERSION:
        pytest.skip("an older version is only read")
    envelope = decode(case.value.encode(), headers_of(case))
    value, headers = encode(msgspec.structs.replace(envelope, raw=None))
    assert value.decode() == case.value
    assert [(key, header.decode()) for key, header in headers] == case.headers
