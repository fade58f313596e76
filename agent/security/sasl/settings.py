"""The settings of authentication: options of `tidelog agent` and variables `TIDELOG_<NAME>`. Texts name
Kafka's configs.
"""

from ipaddress import ip_address
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agent.security.sasl.scram import LEAST_ITERATIONS, MOST_ITERATIONS
from storage.settings import Settings

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
KNOWN_MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)


class SaslSettings(Settings):
    sasl_mechanisms: str = ""
    """How clients of the Kafka listeners prove who they are, separated by commas: PLAIN, SCRAM-SHA-256,
    SCRAM-SHA-512, OAUTHBEARER (sasl.enabled.mechanisms). Empty: they need not.
    """
    sasl_max_receive_bytes: int = Field(default=524_288, ge=1_024)
    """A larger frame closes its connection until its client has authenticated
    (sasl.server.max.receive.size).
    """
    sasl_large_frames_bytes: int = Field(default=8_388_608, ge=1_024)
    """Bytes in memory of frames over 16 KiB, of all connections that have not authenticated. Smaller ones
    wait for none.
    """
    sasl_timeout_s: float = Field(default=10.0, gt=0)
    """A connection that has not authenticated after this time is closed."""
    sasl_max_unauthenticated: int = Field(default=512, ge=1)
    """The most connections that have not authenticated. Past it the one that came first is closed."""
    sasl_failed_delay_ms: int = Field(default=100, ge=0)
    """How long a failed login waits for its answer and its connection's end
    (connection.failed.authentication.delay.ms). It doubles with each further failure from the same host.
    """
    sasl_failed_delay_max_ms: int = Field(default=3_000, ge=0)
    """The longest such delay. Must be shorter than `sasl_timeout_s`."""
    sasl_failing_hosts: int = Field(default=10_000, ge=1)
    """The most hosts whose failed logins are counted. Past it the oldest count is forgotten."""
    connections_max_reauth_ms: int = Field(default=0, ge=0)
    """How long a session lasts before its client must authenticate again (connections.max.reauth.ms). 0: a
    session lasts as long as its connection. A session with a token ends with the token at the latest.
    """
    sasl_password_threads: int = Field(default=1, ge=1)
    """Threads that check passwords of PLAIN. Hosts take turns."""
    sasl_verified_passwords: int = Field(default=1_000, ge=0)
    """Users whose last correct password is remembered as a keyed digest, so that PLAIN checks it without a
    thread.
    """
    sasl_credentials_cached: int = Field(default=10_000, ge=1)
    """Users whose credentials are kept in memory, and as many names that no user has."""
    sasl_credentials_poll_s: float = Field(default=0.5, gt=0)
    """The pause between two looks for credentials that were changed or deleted."""
    sasl_credentials_cache_s: float = Field(default=5.0, ge=0)
    """How long credentials in memory are trusted after the last such look that succeeded."""
    sasl_decoy_iterations: int = Field(default=LEAST_ITERATIONS, ge=LEAST_ITERATIONS, le=MOST_ITERATIONS)
    """The number of iterations that SCRAM shows for a user that does not exist. Set it to what your users
    have, so that nothing tells them apart.
    """
    http_authentication: bool = False
    """True: requests of the HTTP side need a user, by Basic or Bearer authentication. `/live` and `/ready`
    need none. False: anybody may use all of it.
    """
    http_open_metrics: bool = True
    """Whether `/metrics` needs no user. If it does, it needs DESCRIBE on the cluster, too."""
    http_plaintext_logins: bool = False
    """Whether users of the HTTP side may log in without TLS from other machines. Passwords and tokens are
    then readable on the way.
    """
    http_token_s: int = Field(default=900, ge=10, le=86_400)
    """How long a token of the Iceberg catalog counts. Clients ask for the next one in time."""

    oauth_jwks: str = ""
    """Where the identity provider's public keys are (JSON Web Key Set): `https://...` or `file:///...`
    (sasl.oauthbearer.jwks.endpoint.url).
    """
    oauth_issuer: str = ""
    """What a token's `iss` must be (sasl.oauthbearer.expected.issuer)."""
    oauth_audience: str = ""
    """What a token's `aud` must have (sasl.oauthbearer.expected.audience)."""
    oauth_principal_claim: str = Field(default="sub", min_length=1)
    """The claim that names the user (sasl.oauthbearer.sub.claim.name)."""
    oauth_tenant_claim: str = ""
    """The claim that names the user's tenant. A token without it is of no tenant. Empty: all are of none."""
    oauth_clock_skew_s: float = Field(default=30.0, ge=0)
    """How far the provider's clock may be from this one (sasl.oauthbearer.clock.skew.seconds)."""
    oauth_keys_refresh_s: float = Field(default=3600.0, gt=0)
    """Keys older than this are fetched again before they are used
    (sasl.oauthbearer.jwks.endpoint.refresh.ms).
    """
    oauth_keys_trusted_s: float = Field(default=86_400.0, gt=0)
    """How long keys are used while they cannot be fetched again."""
    oauth_keys_pause_s: float = Field(default=10.0, gt=0)
    """The shortest pause between two fetches. A token with an unknown key asks for one."""
    oauth_keys_timeout_s: float = Field(default=5.0, gt=0)
    """How long a fetch may take."""
    oauth_keys_bytes: int = Field(default=1_048_576, ge=1_024)
    """The largest key set."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms, split."""
        return tuple(name.strip() for name in self.sasl_mechanisms.split(",") if name.strip())

    @field_validator("sasl_mechanisms")
    @classmethod
    def _are_known(cls, value: str) -> str:
        for name in (part.strip() for part in value.split(",")):
            if name and name not in KNOWN_MECHANISMS:
                raise ValueError(f"'{name}' is not one of {', '.join(KNOWN_MECHANISMS)}")
        return value

    @field_validator("oauth_jwks")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.username is not None or parts.password is not None:
            raise ValueError("it has a user or password: keys are public, so none is needed")
        is_here = parts.scheme == "file" and bool(parts.path)
        if value and not is_here and not (parts.scheme in ("http", "https") and parts.hostname):
            raise ValueError("it is neither https://... nor file:///...")
        if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
            raise ValueError("keys over plain http could be anybody's: use https")
        return value

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if OAUTHBEARER in self.mechanisms and not (
            self.oauth_jwks and self.oauth_issuer and self.oauth_audience
        ):
            raise ValueError(
                "OAUTHBEARER needs TIDELOG_OAUTH_JWKS, TIDELOG_OAUTH_ISSUER and TIDELOG_OAUTH_AUDIENCE: "
                "without them tokens of anybody, or for other services, would be taken"
            )
        if self.sasl_failed_delay_max_ms >= self.sasl_timeout_s * 1000:
            raise ValueError(
                f"TIDELOG_SASL_FAILED_DELAY_MAX_MS ({self.sasl_failed_delay_max_ms}) must be shorter than "
                f"TIDELOG_SASL_TIMEOUT_S ({self.sasl_timeout_s:g}): the client would not see the answer"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
