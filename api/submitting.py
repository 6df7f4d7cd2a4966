"""A send or regeneration whose reply is followed from its beginning."""

from api.accounts import Caller
from api.context import Service, Trail
from api.reading import Reader
from api.sending import Request, Sent
from schemas.ids import Parsed


async def submit_followed(the: Service, caller: Caller, trail: Trail, event: Request) -> tuple[Sent, Reader]:
    """What is in the log now, and the reply's reader, which is closed again where the request was repeated.

    The subscription is made while the message is on its way, so that it costs no time. Raises `Problem` as
    `Sender.submit` does, and 503.
    """
    reader = the.streams.reader(caller, reply_of(event), 0)
    reader.follow()
    try:
        sent = await the.sender.submit(caller, event, trail.traceparent, trail.limits)
    except BaseException:
        reader.close()
        raise
    if sent.repeated:
        reader.close()
    return sent, reader


def reply_of(event: Request) -> Parsed:
    """The reply that answers a request."""
    return Parsed(kind="rep", id=event.reply_id, conversation_id=event.conversation_id)
