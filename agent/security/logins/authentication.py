"""Who the clients are: the logins of all connections of this agent (docs/security.md#users).

Promises:
- `mechanisms_of` alone decides what a connection must do to get in.
- A failed login is answered late, counted and audited. The audit trail has the reason, the client has not.
- Each login is an event of the audit trail (docs/audit.md).
- A connection that proved itself with a credential hears within `sasl_credentials_poll_s` that it was
  deleted.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from agent.client_network import network_of
from agent.kafka.context import ConnectionState, asker_of
from agent.metrics import Metrics
from agent.security.audit.audit import Audit
from agent.security.audit.events import Asker
from agent.security.logins.failed_logins import FailedLogins
from agent.security.logins.known_credentials import KnownCredentials
from agent.security.logins.logins import Login, PasswordLogin, ScramLogin, TokenLogin
from agent.security.logins.passwords import Passwords
from agent.security.principal import Principal
from agent.security.sasl.session import SaslSession
from agent.security.sasl.settings import OAUTHBEARER, PLAIN, SaslSettings
from agent.security.sasl.steps import SaslRefused
from sequencer.security.credentials import ScramMechanism, UserCredentials
from sequencer.tenants.tenant_names import prefix_of

_HTTP: Final = "HTTP"
_HTTP_LOGIN_AGAIN_S: Final = 600.0
"""Each HTTP request is a login. One of a user and host is an event again after this time."""
_MOST_HTTP_LOGINS: Final = 10_000


class Authentication:
    def __init__(
        self,
        credentials: UserCredentials,
        settings: SaslSettings,
        metrics: Metrics,
        clock: Callable[[], float],
        audit: Audit,
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
        self._audit = audit
        self._http_logins: OrderedDict[tuple[str, str], float] = OrderedDict()
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
            return PasswordLogin(self.known, self.passwords, decoy_iterations, network_of(host), prefix)
        if mechanism == OAUTHBEARER:
            assert self._tokens is not None, "the settings name OAUTHBEARER"
            return TokenLogin(*self._tokens, prefix)
        return ScramLogin(ScramMechanism(mechanism), self.known, decoy_iterations, prefix)

    def note_success(self, connection: ConnectionState, mechanism: str, *, is_again: bool) -> None:
        """`is_again`: the client was logged in already, and renews its session."""
        self._metrics.logins.labels(mechanism, "done").inc()
        self._audit.logged_in(asker_of(connection, connection.client_id), mechanism, is_again=is_again)

    def note_failure(self, connection: ConnectionState, mechanism: str, refused: SaslRefused) -> float:
        """Audits and counts it. Returns how many seconds its answer waits."""
        self._metrics.logins.labels(mechanism, "failed").inc()
        asker = replace(asker_of(connection, connection.client_id), principal=_claimed(refused))
        self._audit.login_failed(asker, mechanism, str(refused))
        return self._failures.delay_s(connection.network, self._clock())

    def note_http_success(self, host: str, user: str) -> None:
        now_s, key = self._clock(), (user, host)
        before_s = self._http_logins.get(key)
        if before_s is not None and now_s - before_s < _HTTP_LOGIN_AGAIN_S:
            return
        self._http_logins[key] = now_s
        self._http_logins.move_to_end(key)
        if len(self._http_logins) > _MOST_HTTP_LOGINS:
            self._http_logins.popitem(last=False)
        asker = Asker(principal=str(Principal(user)), address=host, host=host, listener=_HTTP)
        self._audit.logged_in(asker, _HTTP)

    def note_http_failure(self, host: str, refused: SaslRefused) -> float:
        """As `note_failure`, for a request of the HTTP side."""
        self._metrics.logins.labels(_HTTP, "failed").inc()
        asker = Asker(principal=_claimed(refused), address=host, host=host, listener=_HTTP)
        self._audit.login_failed(asker, _HTTP, str(refused))
        return self._failures.delay_s(network_of(host), self._clock())


def _claimed(refused: SaslRefused) -> str:
    """Returns the principal that the client said it is."""
    return "" if refused.user is None else str(Principal(refused.user))
