"""`turnlog chat`: a conversation in the terminal, through the HTTP API."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from infra.cli_options import AsJson, Data, settings_from
from infra.errors import StackError
from infra.settings import StackSettings

Url = Annotated[str | None, typer.Option(help="The API. [default: the one that `turnlog up` started]")]
Key = Annotated[
    str | None,
    typer.Option(envvar=["TURNLOG_API_KEY", "TURNLOG_KEY"], help="API key. [default: the demo account's]"),
]
ModelName = Annotated[str, typer.Option(help="A model's name, or auto.")]
Conversation = Annotated[str | None, typer.Option(help="Go on with this conversation.")]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(chat)


def chat(
    data: Data = None,
    url: Url = None,
    key: Key = None,
    model: ModelName = "auto",
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Talk to the model. Ctrl-C cancels a reply; /regenerate, /resume and /quit are commands.

    With --json every event of a reply is one line, as the API sent it.
    """
    from infra.chat import Chat, converse
    from infra.data_folder import DataFolder
    from infra.stack import read_snapshot

    folder = DataFolder(settings_from(StackSettings, {"data": data}).data.absolute())
    if url is None or key is None:
        snapshot = read_snapshot(folder.snapshot)
        if snapshot is None:
            raise StackError(f"Nothing runs on {folder.path}: start `turnlog up`, or give --url and --key.")
        own = str(snapshot["url"])
        if key is None and url is not None and not same_machine(url, own):
            raise StackError(
                f"The demo account's key is for the stack on this machine, not for {url}: give --key or "
                "TURNLOG_API_KEY."
            )
        url = url or own
        key = key or folder.demo(0).key
    converse(Chat(url=url, key=key, model=model, conversation_id=conversation), as_json=as_json)


def same_machine(url: str, own: str) -> bool:
    """Whether a URL names this machine, or the host that the local stack listens on."""
    return urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1", urlsplit(own).hostname}
