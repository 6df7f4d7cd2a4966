"""The context of a turn: it fits, holds what it must, and its beginning stays from turn to turn."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import Message
from schemas.events import MessageSubmitted
from schemas.models import SMOLLM2, Model
from schemas.values import PromptMessage
from streams.turns.context import OUTPUT_TOKENS_MIN, Fitted, TooLarge, estimate, fit
from tests.streams.events import stored, submitted

SMALL = replace(SMOLLM2, context_tokens=400, output_tokens_max=100, output_tokens_default=50)


def user(number: int, text: str, system: str | None = None) -> Message:
    event = submitted(number, content=text, system=system)
    return _message(event, event.message_id, "user", text)


def reply(number: int, text: str, status: str = "completed") -> Message:
    message = _message(submitted(number), f"rep_a{number}", "assistant", text)
    return replace(message, status=status, stored=stored(number, text=text, status=status))  # type: ignore[arg-type]


def _message(event: MessageSubmitted, id_: str, role: str, text: str) -> Message:
    return Message(
        id=id_,
        role=role,  # type: ignore[arg-type]
        parent_id=None,
        position=1,
        status="completed",
        text=text,
        model="",
        submitted_at_ms=0,
        request=event,
    )


def said(path: list[Message], model: Model = SMALL, output: int | None = None) -> list[tuple[str, str]]:
    fitted = fit(path, model, output)
    assert isinstance(fitted, Fitted)
    return [(message.role, message.content) for message in fitted.prompt]


def texts(path: list[Message]) -> list[str]:
    return [text for _, text in said(path)]


def test_a_short_conversation_is_there_whole_with_the_newest_system_prompt() -> None:
    path = [user(1, "a", "old"), reply(1, "b"), user(2, "c", "new"), reply(2, "d"), user(3, "e")]
    assert said(path) == [
        ("system", "new"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
        ("user", "e"),
    ]


def test_refused_and_empty_replies_are_left_out_and_the_messages_around_them_joined() -> None:
    path = [user(1, "a"), reply(1, "", "failed"), user(2, "b"), reply(2, "no", "refused"), user(3, "c")]
    assert said(path) == [("user", "a\n\nb\n\nc")]


def test_what_was_said_before_a_cancel_counts() -> None:
    assert said([user(1, "a"), reply(1, "half", "cancelled"), user(2, "b")])[1] == ("assistant", "half")


def test_a_message_that_does_not_fit_alone_is_too_large() -> None:
    large = fit([user(1, "x" * 3 * 400)], SMALL, None)
    assert isinstance(large, TooLarge)
    assert large.prompt_tokens > large.prompt_tokens_max


def test_a_message_that_nearly_fills_the_context_shortens_the_reply_and_says_so() -> None:
    fitted = fit([user(1, "x" * 3 * 350)], SMALL, 100)
    assert isinstance(fitted, Fitted)
    assert OUTPUT_TOKENS_MIN <= fitted.output_tokens_max < 100
    assert [notice.code for notice in fitted.notices] == ["output_shortened"]


def test_the_output_is_capped_by_the_model_without_notice() -> None:
    fitted = fit([user(1, "x")], SMALL, 5_000)
    assert isinstance(fitted, Fitted)
    assert (fitted.output_tokens_max, fitted.notices) == (100, ())


TURNS = st.lists(st.tuples(st.text(min_size=1, max_size=150), st.text(max_size=150)), max_size=30)


@given(TURNS, st.text(max_size=100), st.integers(1, 200))
def test_the_context_fits_and_holds_what_it_must(turns: list[tuple[str, str]], system: str, output: int) -> None:
    path: list[Message] = []
    for number, (asked, answered) in enumerate(turns):
        path += [user(number, asked, system or None), reply(number, answered)]
    path.append(user(99, "newest"))
    fitted = fit(path, SMALL, output)
    assert isinstance(fitted, Fitted)
    tokens = sum(estimate(message.content, SMALL) for message in fitted.prompt)
    assert tokens <= fitted.prompt_tokens
    assert fitted.prompt_tokens + fitted.output_tokens_max <= SMALL.context_tokens
    roles = [message.role for message in fitted.prompt]
    if system and turns:
        assert fitted.prompt[0].content == system
        assert roles.pop(0) == "system"
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert fitted.prompt[-1].content.endswith("newest")


def test_the_window_moves_in_blocks_so_that_the_prefix_mostly_stays() -> None:
    path: list[Message] = []
    firsts = []
    for number in range(60):
        path.append(user(number, f"question {number:03}"))
        firsts.append(said(path)[0])
        path.append(reply(number, f"an answer of some length {number:03}"))
    moves = sum(1 for before, now in pairwise(firsts) if before != now)
    assert 0 < moves <= 60 * 30 // (350 // 4) + 1


def test_a_message_that_brings_its_history_is_preceded_by_that_and_nothing_else() -> None:
    brought = (PromptMessage(role="user", content="theirs"), PromptMessage(role="assistant", content="indeed"))
    event = submitted(2, content="and now?", system="of theirs", history=brought)
    path = [
        user(1, "of the branch", "of the branch"),
        reply(1, "unseen"),
        _message(event, event.message_id, "user", "and now?"),
    ]
    assert texts(path) == ["of theirs", "theirs", "indeed", "and now?"]
    follow_up = [*path, reply(2, "so"), user(3, "more")]
    assert texts(follow_up) == ["of theirs", "theirs", "indeed", "and now?", "so", "more"]


def test_a_history_is_windowed_like_the_branch() -> None:
    brought = tuple(
        PromptMessage(role="user" if n % 2 == 0 else "assistant", content=f"{n:04} " + "x" * 60) for n in range(40)
    )
    event = submitted(1, content="newest", history=brought)
    fitted = fit([_message(event, event.message_id, "user", "newest")], SMALL, 50)
    assert isinstance(fitted, Fitted)
    assert fitted.prompt_tokens + fitted.output_tokens_max <= SMALL.context_tokens
    assert fitted.prompt[0].role == "user"
    assert fitted.prompt[-1].content == "newest"
    assert 1 < len(fitted.prompt) < 41


def test_an_empty_system_prompt_ends_the_one_before() -> None:
    path = [user(1, "one", "be brief"), reply(1, "ok"), user(2, "two", "")]
    assert texts(path) == ["one", "ok", "two"]
