"""PLAIN (RFC 4616): the client sends its user's name and password. Pure.

Promises: any bytes are a `PlainLogin` or raise SaslRefused, and a password appears in no `repr` and no error.
"""

from dataclasses import dataclass, field
from typing import Final

from agent.security.sasl.steps import SaslRefused
from sequencer.security.credentials import can_be_user

_LONGEST_MESSAGE: Final = 4_096
_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLogin:
    user: str
    password: bytes = field(repr=False)
    """In UTF-8. Logins wait in a queue, and as a text it could take four times as much memory."""


def read_plain(message: bytes) -> PlainLogin:
    """Reads `authzid NUL user NUL password`. Raises SaslRefused."""
    if len(message) > _LONGEST_MESSAGE:
        raise SaslRefused(f"the client's message has more than {_LONGEST_MESSAGE} bytes")
    parts = message.split(b"\0")
    if len(parts) != _PARTS:
        raise SaslRefused("the client's message is not PLAIN's: three parts with NUL between them")
    password = parts[2]
    try:
        authzid, user, _ = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise SaslRefused("the client's message is not UTF-8") from None
    if user and not can_be_user(user):
        raise SaslRefused("no user can have this name")
    if not user or not password:
        raise SaslRefused("the client sends no user or no password", user or None)
    if authzid and authzid != user:
        raise SaslRefused("the client asks to act for another user", user)
    return PlainLogin(user=user, password=password)
