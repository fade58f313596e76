"""PLAIN's one message."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.security.sasl.plain import read_plain
from agent.security.sasl.steps import SaslRefused

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


@given(TEXT, TEXT, st.booleans())
def test_user_and_password_are_read_as_sent(user: str, password: str, names_itself: bool) -> None:
    login = read_plain(f"{user if names_itself else ''}\0{user}\0{password}".encode())

    assert (login.user, login.password) == (user, password.encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_login_or_refused(message: bytes) -> None:
    with contextlib.suppress(SaslRefused):
        read_plain(message)


@pytest.mark.parametrize(
    "message",
    [b"", b"\0ann\0", b"\0\0secret", b"bob\0ann\0secret", b"\0ann\0secret\0", b"ann\0secret", b"\xff\0a\0b"],
)
def test_other_messages_are_refused_without_the_password(message: bytes) -> None:
    with pytest.raises(SaslRefused) as refused:
        read_plain(message)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("message", [b"\0" + b"x" * 256 + b"\0secret", b"\0ann\0" + b"x" * 4_092])
def test_names_that_no_user_has_and_long_messages_are_refused(message: bytes) -> None:
    with pytest.raises(SaslRefused):
        read_plain(message)


def test_a_login_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(read_plain(b"\0ann\0hunter2"))
