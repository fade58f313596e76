"""PLAIN (RFC 4616): the client sends its user's name and password. Pure.

Promises: any bytes are a `PlainLogin` or raise SaslRefused, and a password appears in no `repr` and no error.
"""

from dataclasses import dataclass, field
from typing import Final

from agent.security.sasl.steps import SaslRefused

_LONGEST_MESSAGE: Final = 65_536
_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLogin:
    user: str
    password: str = field(repr=False)


def read_plain(message: bytes) -> PlainLogin:
    """Reads `authzid NUL user NUL password`. Raises SaslRefused."""
    if len(message) > _LONGEST_MESSAGE:
        raise SaslRefused(f"the client's message has more than {_LONGEST_MESSAGE} bytes")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslRefused("the client's message is not UTF-8") from None
    if len(parts) != _PARTS:
        raise SaslRefused("the client's message is not PLAIN's: three parts with NUL between them")
    authzid, user, password = parts
    if not user or not password:
        raise SaslRefused("the client sends no user or no password", user or None)
    if authzid and authzid != user:
        raise SaslRefused("the client asks to act for another user", user)
    return PlainLogin(user=user, password=password)
