"""The programs of docs/clients.md: fenced blocks that name a file, as in "```js file=eventsource.mjs"."""

import re
from pathlib import Path

from clients.programs import HERE

PAGE = HERE.parents[1] / "docs" / "clients.md"
_BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def programs() -> dict[str, str]:
    """Each program of the page by the name of its file. Fails when a name is there twice."""
    found = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(dict(found)) == len(found), "a program is there twice"
    return dict(found)


def written(folder: Path) -> Path:
    """The folder, with all programs in it, and beside them the packages that `tests/clients` has."""
    for name, text in programs().items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "node_modules").symlink_to(HERE / "node_modules")
    return folder
