"""Whom bounds count as one before a login, and that they do."""

import pytest

from agent.client_network import network_of
from agent.kafka.context import ConnectionState
from agent.metrics import Metrics
from agent.security.audit.audit import Audit
from agent.security.audit.settings import AuditSettings
from agent.security.logins.authentication import Authentication
from agent.security.sasl.settings import SaslSettings
from agent.security.sasl.steps import SaslRefused
from sequencer.client import Sequencer


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::", "2001:db8:1:2::"),
        ("::1", "::"),
        ("fe80::1%eth0", "fe80::%eth0"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("/run/a:socket", "/run/a:socket"),
    ],
)
def test_an_ipv6_address_counts_with_its_64_bits(host: str, network: str) -> None:
    assert network_of(host) == network


def test_what_a_connection_is_counted_with_is_not_what_acls_see() -> None:
    state = ConnectionState(connection_id=1, peer="2001:db8::17:40123")

    assert (state.host, state.network) == ("2001:db8::17", "2001:db8::")


async def test_failed_logins_of_one_network_wait_longer_and_log_no_more(sequencer: Sequencer) -> None:
    metrics = Metrics()
    audit = Audit(AuditSettings(audit_refusals_of_host_per_s=2.0), metrics, lambda: 0.0)
    authentication = Authentication(sequencer.user_credentials, SaslSettings(), metrics, lambda: 0.0, audit)
    refused = SaslRefused("wrong", "eve")

    by_http = [authentication.note_http_failure(f"2001:db8::{n:x}", refused) for n in range(4)]
    by_sasl = [
        authentication.note_failure(
            ConnectionState(connection_id=n, peer=f"2001:db8::a{n}:{9000 + n}"), "PLAIN", refused
        )
        for n in range(2)
    ]
    of_another = authentication.note_http_failure("2001:db8:0:1::1", refused)

    waits = by_http + by_sasl
    assert waits == sorted(waits)
    assert waits[0] < waits[1] < waits[2]
    assert of_another == waits[0]
    assert metrics.audit_events_lost.labels("login failed", "rate")._value.get() == 4
