"""What a SASL mechanism's machine says after a client's message."""

from dataclasses import dataclass, field

from sequencer.security.credentials import CredentialKey


class SaslRefused(Exception):
    """The client did not prove who it is. The text is for the log. The client only learns that it failed, so
    that it cannot tell a wrong password from a user that does not exist.
    """

    def __init__(self, reason: str, user: str | None = None) -> None:
        super().__init__(reason)
        self.user = user


class CannotCheck(Exception):
    """What the proof is checked against cannot be had now. The client should connect again: an answer that
    says "failed" would make it give up.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The client has to answer this."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """The client is this user. `data` goes to the client."""

    user: str
    data: bytes = field(default=b"", repr=False)
    credential: CredentialKey | None = None
    """The credential that the client has proved itself with."""
    token_s: float | None = None
    """How long the client's token is still valid."""
