"""What a connection of a SASL listener may ask, from its first byte on (KIP-43, KIP-152, KIP-368).

Promises:
- Before the client has authenticated, only ApiVersions, SaslHandshake and SaslAuthenticate are answered, each
  in its turn.
- After the session's end, only a new authentication is answered.
- A new authentication uses the same mechanism and yields the same principal.

Pure: the caller has the clock, and runs the mechanism.
"""

from enum import Enum, auto
from typing import Any, Final

from agent.security.principal import Principal
from sequencer.security.credentials import CredentialKey

API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
LEAST_REAUTH_PAUSE_S: Final = 1.0
"""A client that authenticates again sooner is refused, as in Kafka."""


class Handshake(Enum):
    """What a SaslHandshake comes to."""

    BEGUN = auto()
    UNSUPPORTED = auto()
    """The listener does not offer this mechanism."""
    OTHER_MECHANISM = auto()
    """A new authentication must use the mechanism of the first."""
    OUT_OF_TURN = auto()


class _Stage(Enum):
    HANDSHAKE = auto()
    EXCHANGE = auto()
    OPEN = auto()
    FAILED = auto()


class SaslSession:
    def __init__(self, mechanisms: tuple[str, ...], max_session_s: float | None) -> None:
        """`mechanisms`: those that the connection's listener offers. `max_session_s`: Kafka's
        connections.max.reauth.ms. None: a session ends with its token, if it has one.
        """
        self.mechanisms = mechanisms
        self._max_session_s = max_session_s
        self._stage = _Stage.HANDSHAKE
        self._exchange: Any = None
        self._is_raw = False
        self._authenticated_s: float | None = None
        self.mechanism: str | None = None
        self.principal: Principal | None = None
        self.credential: CredentialKey | None = None
        """The credential that the client has proved itself with. When it is deleted, the session ends."""
        self.ends_s: float | None = None
        """When the session ends."""

    @property
    def is_authenticated(self) -> bool:
        """True from the first success on, also while the client authenticates again."""
        return self.principal is not None and self._stage is not _Stage.FAILED

    @property
    def is_failed(self) -> bool:
        return self._stage is _Stage.FAILED

    @property
    def takes_raw_frames(self) -> bool:
        """True after a SaslHandshake v0: frames are the mechanism's messages, without Kafka's headers."""
        return self._is_raw and self._stage is _Stage.EXCHANGE

    @property
    def exchange(self) -> Any:
        """Returns the mechanism's machine. None: no SaslAuthenticate is due now."""
        return self._exchange if self._stage is _Stage.EXCHANGE else None

    def refusal(self, api_key: int, now_s: float) -> str | None:
        """Returns why a request closes the connection. None: it is answered."""
        if self._stage is _Stage.FAILED:
            return "the authentication failed"
        if self._stage is _Stage.HANDSHAKE:
            is_due = api_key in (API_VERSIONS, SASL_HANDSHAKE)
            return None if is_due else f"api key {api_key} came before SaslHandshake"
        if self._stage is _Stage.EXCHANGE:
            return None if api_key == SASL_AUTHENTICATE else f"api key {api_key} came before SaslAuthenticate"
        is_over = self.ends_s is not None and now_s > self.ends_s
        return "the session is over" if is_over and api_key != SASL_HANDSHAKE else None

    def handshake(self, mechanism: str, exchange: Any, now_s: float, *, raw: bool) -> Handshake:
        """Takes a SaslHandshake. `exchange`: a new machine of this mechanism, None if there is none."""
        if self._stage is _Stage.OPEN:
            is_soon = self._authenticated_s is not None and (
                now_s - self._authenticated_s < LEAST_REAUTH_PAUSE_S
            )
            if is_soon or raw:
                return Handshake.OUT_OF_TURN
            if mechanism != self.mechanism:
                self.fail()
                return Handshake.OTHER_MECHANISM
        elif self._stage is not _Stage.HANDSHAKE:
            return Handshake.OUT_OF_TURN
        if mechanism not in self.mechanisms or exchange is None:
            self.fail()
            return Handshake.UNSUPPORTED
        self.mechanism, self._exchange, self._is_raw = mechanism, exchange, raw
        self._stage = _Stage.EXCHANGE
        return Handshake.BEGUN

    def succeed(
        self, principal: Principal, credential: CredentialKey | None, token_s: float | None, now_s: float
    ) -> bool:
        """Opens the session. `token_s`: how long the client's token is still valid. False: the client has
        become another principal, which is refused.
        """
        if self.principal is not None and principal != self.principal:
            self.fail()
            return False
        lifetimes = [life for life in (token_s, self._max_session_s) if life is not None]
        self.principal, self.credential = principal, credential
        self._authenticated_s = now_s
        self.ends_s = now_s + max(0.0, min(lifetimes)) if lifetimes else None
        self._exchange, self._stage = None, _Stage.OPEN
        return True

    def fail(self) -> None:
        """The connection gets one more response and is then closed."""
        self._exchange, self._stage = None, _Stage.FAILED

    def lifetime_s(self, now_s: float) -> float:
        """Returns how long the session lasts. 0: it does not end."""
        return 0.0 if self.ends_s is None else max(0.001, self.ends_s - now_s)
