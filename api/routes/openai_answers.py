"""What the routes for OpenAI's clients have in common: answers and deletion."""

from starlette.responses import Response

from api.accounts import Caller
from api.context import Service, Trail
from api.formats.exchange import Facts, headers_of, held
from api.problems import DO_NOT_RETRY, Problem
from schemas.codec import to_json
from schemas.ids import Parsed


def told(body: object, facts: Facts | None = None) -> Response:
    """A JSON answer; about a reply, with the headers that name it."""
    return Response(to_json(body), 200, headers_of(facts) if facts else None, "application/json")


async def delete_alone(the: Service, caller: Caller, trail: Trail, reply: Parsed) -> None:
    """Delete the conversation of a reply that is its only one. Raises `Problem` 404, 409 or 503."""
    conversation, _ = await held(the, caller, reply)
    if any(message.role == "assistant" and message.id != reply.id for message in conversation.messages.values()):
        detail = (
            "The conversation of this response has other responses, which build on it. Delete the conversation:"
            f" DELETE /v1/conversations/{conversation.id}."
        )
        raise Problem(409, "conversation_goes_on", "Conflict", detail, headers=DO_NOT_RETRY)
    await the.conversations.delete(caller, conversation.id, trail.traceparent)
