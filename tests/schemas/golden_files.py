"""Golden bytes: `golden/<Event>.v<version>.json`, one a published version, never rewritten.

`python -m tests.schemas.golden_files` adds files for versions that have none. Each holds cases of
`{"value", "headers", "members"}`: the record's bytes as text, its headers, and the members of the event in it.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from schemas.codec import Envelope, encode
from schemas.events import EVENTS, Event
from schemas.examples import EXAMPLES, envelope
from tests.schemas.strategies import AWKWARD

FOLDER = Path(__file__).parent / "golden"


class Case(msgspec.Struct, frozen=True):
    """One record and what is in it."""

    value: str
    headers: list[tuple[str, str]]
    members: dict[str, object]


def path_of(cls: type[Event]) -> Path:
    """Where the golden bytes of today's version stand."""
    return FOLDER / f"{cls.__name__}.v{cls.VERSION}.json"


def files() -> Iterable[tuple[str, int, tuple[Case, ...]]]:
    """Class name, version and cases of every file."""
    for path in sorted(FOLDER.glob("*.json")):
        name, version = path.stem.split(".v")
        yield name, int(version), msgspec.json.decode(path.read_bytes(), type=tuple[Case, ...])


def envelopes(cls: type[Event]) -> Iterable[Envelope[Event]]:
    """The example, and one with awkward text in each free text member."""
    yield envelope(EXAMPLES[cls])
    texts = [field.name for field in msgspec.structs.fields(cls) if field.type is str]
    awkward = "".join(AWKWARD)
    yield Envelope(event=msgspec.structs.replace(EXAMPLES[cls], **dict.fromkeys(texts, awkward)), source="s")


def case_of(made: Envelope[Event]) -> Case:
    """The golden case of an envelope."""
    value, headers = encode(made)
    return Case(
        value=value.decode(),
        headers=[(name, header.decode()) for name, header in headers],
        members=msgspec.to_builtins(made.event),
    )


def add_missing() -> list[Path]:
    """Write the files of versions that have none; touches no file that exists."""
    added = [path_of(cls) for cls in EVENTS if not path_of(cls).exists()]
    for cls in EVENTS:
        if path_of(cls) in added:
            cases = [case_of(made) for made in envelopes(cls)]
            text = json.dumps(msgspec.to_builtins(cases), indent=1, ensure_ascii=True)
            path_of(cls).write_text(text + "\n", encoding="ascii")
    return added


if __name__ == "__main__":
    for path in add_missing():
        sys.stdout.write(f"added {path.name}\n")
