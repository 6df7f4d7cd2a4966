"""An id proves whose it is, and a repeated send gives the same ids."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import (
    Identities,
    generation_id,
    has_secret,
    instance_id,
    is_account_id,
    is_user_id,
    key_hash,
    key_id,
    key_prefix,
    new_key,
    text_digest,
    without_secrets,
)
from tests.schemas.strategies import TEXT

SECRETS = st.binary(min_size=16, max_size=40)
CLIENT_IDS = st.none() | TEXT.filter(len)
IDENTITIES = Identities(secret=b"0123456789abcdef")


def all_ids(identities, account_id, client_message_id):
    conversation = identities.conversation(account_id, client_message_id)
    message = identities.message(account_id, conversation, client_message_id)
    return conversation, message, identities.reply(account_id, conversation, client_message_id)


@given(SECRETS, TEXT, TEXT)
def test_a_repeated_send_gives_the_same_ids_from_any_process(secret, account_id, client_message_id):
    first = all_ids(Identities(secret=secret), account_id, client_message_id)
    assert first == all_ids(Identities(secret=secret), account_id, client_message_id)


@given(TEXT)
def test_sends_without_a_client_id_never_share_an_id(account_id):
    assert len({text for _ in range(3) for text in all_ids(IDENTITIES, account_id, None)}) == 9


@given(TEXT, CLIENT_IDS)
def test_an_id_says_its_kind_and_its_conversation(account_id, client_message_id):
    ids = all_ids(IDENTITIES, account_id, client_message_id)
    for kind, text in zip(("conv", "msg", "rep"), ids, strict=True):
        parsed = IDENTITIES.parse(account_id, text)
        assert (parsed.kind, parsed.id, parsed.conversation_id) == (kind, text, ids[0])


@given(TEXT, TEXT, CLIENT_IDS)
def test_another_accounts_id_is_as_one_that_does_not_exist(account_id, other, client_message_id):
    for text in all_ids(IDENTITIES, account_id, client_message_id):
        assert (IDENTITIES.parse(other, text) is None) == (other != account_id)


@given(SECRETS, CLIENT_IDS)
def test_an_id_made_with_another_secret_does_not_exist(secret, client_message_id):
    for text in all_ids(Identities(secret=secret), "demo", client_message_id):
        assert (IDENTITIES.parse("demo", text) is None) == (secret != IDENTITIES.secret)


@given(st.sampled_from([0, 1, 2]), st.data())
def test_an_id_with_any_character_changed_does_not_exist(which, data):
    text = all_ids(IDENTITIES, "demo", "1")[which]
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(string.printable + "é\u0131\u017f０").filter(lambda c: c != text[at]))
    assert IDENTITIES.parse("demo", text[:at] + other + text[at + 1 :]) is None


@given(st.sampled_from([0, 1, 2]), st.data())
def test_an_id_cut_or_lengthened_does_not_exist(which, data):
    text = all_ids(IDENTITIES, "demo", "1")[which]
    at = data.draw(st.integers(0, len(text)))
    assert IDENTITIES.parse("demo", text[:at] + data.draw(TEXT.filter(len)) + text[at:]) is None
    assert at == len(text) or IDENTITIES.parse("demo", text[:at]) is None


def test_an_id_in_upper_case_or_of_another_kind_does_not_exist():
    for text in all_ids(IDENTITIES, "demo", "1"):
        kind, _, body = text.partition("_")
        assert IDENTITIES.parse("demo", f"{kind}_{body.upper()}") is None
        assert all(IDENTITIES.parse("demo", f"{other}_{body}") is None for other in {"conv", "msg", "rep"} - {kind})


@given(TEXT)
def test_any_text_is_parsed_without_an_error(text):
    for tried in (text, f"conv_{text}", f"msg_{text}", f"rep_{text}"):
        assert IDENTITIES.parse("demo", tried) is None


@given(TEXT, TEXT, TEXT, TEXT)
def test_account_and_client_id_cannot_be_shifted_into_one_another(a, b, c, d):
    same = (a, b) == (c, d)
    assert (all_ids(IDENTITIES, a, b) == all_ids(IDENTITIES, c, d)) == same


@given(TEXT, TEXT.filter(len))
def test_one_client_id_in_two_conversations_gives_two_messages(account_id, client_message_id):
    one, two = (IDENTITIES.conversation(account_id, None) for _ in range(2))
    assert IDENTITIES.message(account_id, one, client_message_id) != IDENTITIES.message(
        account_id, two, client_message_id
    )


@pytest.mark.parametrize("conversation_id", ["", "conv_", "conv_ä", "msg_abc", "conv_" + "0" * 50])
def test_a_message_is_not_made_in_what_is_no_conversation(conversation_id):
    with pytest.raises(ValueError, match="not a conversation id"):
        IDENTITIES.message("demo", conversation_id, None)


@given(TEXT)
def test_ids_are_safe_in_addresses_and_keys(account_id):
    allowed = set(string.ascii_lowercase + string.digits + "_")
    for text in (*all_ids(IDENTITIES, account_id, None), generation_id(), instance_id()):
        assert set(text) <= allowed


def test_conversations_sort_by_their_creation():
    ids = [IDENTITIES.conversation("demo", None) for _ in range(50)]
    assert ids == sorted(ids)


def test_a_short_secret_is_refused():
    with pytest.raises(ValueError, match="16 bytes"):
        Identities(secret=b"short")


def test_ids_of_a_known_secret_stay_as_they_are():
    assert all_ids(IDENTITIES, "demo", "1") == (
        "conv_nd952749ol6c8ebo9bfhlq1rnqr5gt808hqg",
        "msg_nd952749ol6c8ebo9bfhlq1rnpnmaa9qhjbolbibe0qkjj1562u0",
        "rep_nd952749ol6c8ebo9bfhlq1rnpl960dcod31rvtebtq68206pm50",
    )
    assert text_digest("grün") == "fe263064ba02eaea"
    assert key_hash("key") == "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"


def test_a_conversation_that_a_client_names_is_the_same_each_time_and_the_accounts_own():
    first = IDENTITIES.named_conversation("ann", "chat-1")
    assert first == IDENTITIES.named_conversation("ann", "chat-1")
    assert first not in {
        IDENTITIES.named_conversation("ann", "chat-2"),
        IDENTITIES.named_conversation("bob", "chat-1"),
        IDENTITIES.conversation("ann", "chat-1"),
    }
    assert IDENTITIES.parse("ann", first) is not None
    assert IDENTITIES.parse("bob", first) is None


TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJ4In0.c2lnbmF0dXJl"


def test_keys_and_tokens_in_a_text_are_hidden():
    key = new_key()
    for secret in (key, "tlo_" + "a" * 40, TOKEN, TOKEN.rpartition(".")[0] + "."):
        for text in (secret, f"a {secret}", f'{{"path": "/v1/{secret}/x"}}', f"({secret})", f"key={secret}&x=1"):
            assert has_secret(text)
            assert secret not in without_secrets(text)
            assert without_secrets(text).startswith(text.partition(secret)[0])
    assert without_secrets(f"{key} and {key}") == f"{key[:8]}… and {key[:8]}…"


@given(TEXT)
def test_what_is_hidden_is_hidden_once_and_other_text_stays(text):
    hidden = without_secrets(text)
    assert not has_secret(hidden)
    assert hidden == text or has_secret(text)


def test_the_name_of_a_key_is_not_the_key():
    key = new_key()
    assert key.startswith(key_prefix(key))
    assert len(key) - len(key_prefix(key)) >= 24
    assert key_id(key) == key_id(key) != key_id(new_key())
    assert not has_secret(key_prefix(key))
    assert (len(key_prefix(key)), key_prefix("tlk_secret")) == (10, "tlk")


@pytest.mark.parametrize("text", ["a", "0", "a-b_c", "a" * 64])
def test_an_accounts_id_is_short_and_plain(text):
    assert is_account_id(text)


@pytest.mark.parametrize("text", ["", "A", "-a", "_a", "a b", "a/b", "a" * 65, "a\n", "é", "a{b}"])
def test_what_is_no_accounts_id(text):
    assert not is_account_id(text)


def test_a_users_id_may_be_anything_that_is_printed():
    assert all(is_user_id(text) for text in ("x", "x" * 255, "auth0|7", "https://x/7", "é", "a b"))
    assert not any(is_user_id(text) for text in ("", "x" * 256, "a\nb", "\x00", "\ud800"))
