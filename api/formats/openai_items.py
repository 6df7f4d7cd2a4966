"""What was said to a response, as the items that the Responses API lists.

Source: https://platform.openai.com/docs/api-reference/responses/input-items
"""

from typing import Any, Literal

from schemas.conversation import Conversation, Message
from schemas.events import MessageSubmitted


def input_items(conversation: Conversation, reply: Message) -> tuple[dict[str, Any], ...]:
    """The user's message behind the history that came with it, oldest first."""
    asked = conversation.messages.get(reply.parent_id or "")
    if asked is None:
        return ()
    request = asked.request
    history = request.history if isinstance(request, MessageSubmitted) else ()
    before = [_item(f"{asked.id}_{index}", one.role, one.content) for index, one in enumerate(history)]
    return (*before, _item(asked.id, "user", asked.text))


def listed(
    items: tuple[dict[str, Any], ...], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> dict[str, Any] | None:
    """A page of items; None: `after` is none of them."""
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        return None
    rest = ordered[ids.index(after) + 1 :] if after is not None else ordered
    page = rest[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(rest) > limit,
    }


def _item(item_id: str, role: str, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": item_id, "type": "message", "status": "completed", "role": role, "content": [part]}
