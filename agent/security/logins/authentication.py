"""Who the clients are: the logins of all connections of this agent (docs/security.md#users).

Promises:
- `mechanisms_of` alone decides what a connection must do to get in.
- A failed login is answered late, counted and logged. The log has the reason, the client has not.
- A connection that proved itself with a credential hears within `sasl_credentials_poll_s` that it was
  deleted.
"""

import logging
from collections.abc import Callable

from agent.kafka.context import ConnectionState
from agent.metrics import Metrics
from agent.security.line_limit import STRANGERS_LINES_PER_S, LineLimit
from agent.security.logins.failed_logins import FailedLogins
from agent.security.logins.known_credentials import KnownCredentials
from agent.security.logins.logins import Login, PasswordLogin, ScramLogin, TokenLogin
from agent.security.logins.passwords import Passwords
from agent.security.sasl.session import SaslSession
from agent.security.sasl.settings import OAUTHBEARER, PLAIN, SaslSettings
from agent.security.sasl.steps import SaslRefused
from sequencer.security.credentials import ScramMechanism, UserCredentials
from sequencer.tenants.tenant_names import prefix_of

log = logging.getLogger("tidelog")

_LOGGED_CHARACTERS = 100


class Authentication:
    def __init__(
        self,
        credentials: UserCredentials,
        settings: SaslSettings,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self.settings = settings
        self.known = KnownCredentials(credentials, settings, clock)
        self.passwords = Passwords(settings)
        self._metrics = metrics
        self._clock = clock
        self._failures = FailedLogins(
            base_s=settings.sasl_failed_delay_ms / 1000,
            most_s=settings.sasl_failed_delay_max_ms / 1000,
            most_hosts=settings.sasl_failing_hosts,
        )
        self._lines = LineLimit(STRANGERS_LINES_PER_S, clock)
        self._tokens = None
        if OAUTHBEARER in settings.mechanisms:
            # These import httpx and cryptography: 0.2 s that other agents do not need.
            from agent.security.logins.token_keys import TokenKeys
            from agent.security.sasl.oauthbearer import TokenRules

            rules = TokenRules(
                issuer=settings.oauth_issuer,
                audience=settings.oauth_audience,
                principal_claim=settings.oauth_principal_claim,
                clock_skew_s=settings.oauth_clock_skew_s,
                tenant_claim=settings.oauth_tenant_claim,
            )
            self._tokens = (TokenKeys(settings, clock), rules)

    async def run(self) -> None:
        """Notices changes of credentials, until cancelled. Returns at once if no client needs them."""
        if self.settings.mechanisms:
            await self.known.run()

    def close(self) -> None:
        self.passwords.close()
        if self._tokens is not None:
            self._tokens[0].close()

    def mechanisms_of(self, connection: ConnectionState) -> tuple[str, ...]:
        """Returns the mechanisms that the connection's listener offers. None: its clients need not
        authenticate. Another agent has done that for the clients that it forwards.
        """
        has_sasl = connection.listener.security_protocol.has_sasl and connection.forwarded_by is None
        return self.settings.mechanisms if has_sasl else ()

    def session_of(self, connection: ConnectionState) -> SaslSession | None:
        """Returns a new connection's session, or None if its client need not authenticate."""
        mechanisms = self.mechanisms_of(connection)
        longest_s = self.settings.connections_max_reauth_ms / 1000
        return SaslSession(mechanisms, longest_s or None) if mechanisms else None

    def login(self, mechanism: str, host: str, tenant: str | None = None) -> Login:
        """Returns a new login by one of `mechanisms_of`. `tenant`: the client came by its server name, and is
        a user of that tenant, under the name that it has there.
        """
        prefix = "" if tenant is None else prefix_of(tenant)
        decoy_iterations = self.settings.sasl_decoy_iterations
        if mechanism == PLAIN:
            return PasswordLogin(self.known, self.passwords, decoy_iterations, host, prefix)
        if mechanism == OAUTHBEARER:
            assert self._tokens is not None, "the settings name OAUTHBEARER"
            return TokenLogin(*self._tokens, prefix)
        return ScramLogin(ScramMechanism(mechanism), self.known, decoy_iterations, prefix)

    def note_success(self, connection: ConnectionState, mechanism: str) -> None:
        connection_principal = str(connection.principal)
        self._metrics.logins.labels(mechanism, "done").inc()
        log.debug("login", extra=_fields(connection, mechanism) | {"principal": connection_principal})

    def note_failure(self, connection: ConnectionState, mechanism: str, refused: SaslRefused) -> float:
        """Logs and counts it. Returns how many seconds its answer waits."""
        self._metrics.logins.labels(mechanism, "failed").inc()
        self._log_failure(_fields(connection, mechanism), refused)
        return self._failures.delay_s(connection.host, self._clock())

    def note_http_failure(self, host: str, refused: SaslRefused) -> float:
        """The same for a request of the HTTP side."""
        self._metrics.logins.labels("HTTP", "failed").inc()
        self._log_failure({"peer": host, "mechanism": "HTTP"}, refused)
        return self._failures.delay_s(host, self._clock())

    def _log_failure(self, fields: dict[str, object], refused: SaslRefused) -> None:
        left_out = self._lines.take()
        if left_out is not None:
            user = (refused.user or "")[:_LOGGED_CHARACTERS]
            reason = {"user": user, "reason": str(refused), "left_out_before": left_out}
            log.warning("login failed", extra=fields | reason)


def _fields(connection: ConnectionState, mechanism: str) -> dict[str, object]:
    return {
        "peer": connection.peer,
        "client_id": (connection.client_id or "")[:_LOGGED_CHARACTERS],
        "mechanism": mechanism,
    }
