"""Listeners as settings describe them, and who reaches them."""

import logging
from typing import Any

import pytest
from pydantic import ValidationError

from agent.security.listener_settings import ListenerSettings
from agent.security.listeners import (
    KafkaListener,
    SecurityProtocol,
    is_loopback,
    open_listeners,
    parse_addresses,
)
from agent.security.tls.contexts import ClientAuth
from agent.settings import AgentSettings
from tests.support.settings import all_settings
from tidelog.errors import UserError
from tidelog.process.run_agent import _warn_of_strangers
from tidelog.process.settings_fit import check_settings_fit

FILES: dict[str, Any] = {"tls_certificate_file": "c.pem", "tls_key_file": "k.pem", "tls_ca_file": "ca.pem"}


def test_the_simple_settings_make_one_listener() -> None:
    agent = AgentSettings(kafka_host="::1", kafka_port=9093, advertised_host="broker", advertised_port=1)

    assert ListenerSettings(security_protocol="SSL", **FILES).kafka_listeners(agent) == (
        KafkaListener(
            name="SSL",
            host="::1",
            port=9093,
            security_protocol=SecurityProtocol.SSL,
            advertised_host="broker",
            advertised_port=1,
        ),
    )


def test_listeners_are_named_as_in_kafka() -> None:
    settings = ListenerSettings(
        listeners="outside://0.0.0.0:9094, INSIDE://[::]:9092,PLAINTEXT://127.0.0.1:0",
        advertised_listeners="OUTSIDE://kafka.example.org:443",
        listener_security_protocol_map="OUTSIDE:SSL,INSIDE:PLAINTEXT",
        tls_client_auth="OUTSIDE:required",
        **FILES,
    )
    outside, inside, plain = settings.kafka_listeners(AgentSettings())

    assert (outside.name, outside.host, outside.port) == ("OUTSIDE", "0.0.0.0", 9094)
    assert (outside.security_protocol, outside.client_auth) == (SecurityProtocol.SSL, ClientAuth.REQUIRED)
    assert (outside.advertised_host, outside.advertised_port) == ("kafka.example.org", 443)
    assert (inside.host, inside.advertised_host, inside.client_auth) == ("::", None, ClientAuth.NONE)
    assert plain.security_protocol is SecurityProtocol.PLAINTEXT


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "OUTSIDE:9092"}, "NAME://host:port"),
        ({"listeners": "A://h:70000"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "twice"),
        ({"listeners": "OUTSIDE://h:1"}, "TIDELOG_LISTENER_SECURITY_PROTOCOL_MAP"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1", **FILES}, "binds"),
        ({"listeners": "PLAINTEXT://h:1", "advertised_listeners": "OTHER://h:1"}, "OTHER"),
        ({"advertised_listeners": "PLAINTEXT://h:1"}, "need TIDELOG_LISTENERS"),
        ({"security_protocol": "SSL"}, "TIDELOG_TLS_CERTIFICATE_FILE"),
        (
            {"security_protocol": "SSL", **FILES, "tls_ca_file": None, "tls_client_auth": "required"},
            "TLS_CA_FILE",
        ),
        ({"security_protocol": "SSL", **FILES, "tls_client_auth": "often"}, "often"),
        ({"tls_principal_mapping_rules": "RULE:x"}, "no rule"),
        ({"http_tls": True}, "TIDELOG_TLS_CERTIFICATE_FILE"),
        ({"peer_tls": "required"}, "TIDELOG_PEER_TLS_CERTIFICATE_FILE"),
        ({"peer_tls": "required", **FILES, "tls_ca_file": None}, "TIDELOG_PEER_TLS_CA_FILE"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ListenerSettings(**settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_loopback_address_is_reached_from_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "broker", "fe80::1"])
def test_every_other_address_counts_as_public(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("protocol", "client_auth", "is_open"),
    [
        (SecurityProtocol.PLAINTEXT, ClientAuth.NONE, True),
        (SecurityProtocol.SSL, ClientAuth.NONE, True),
        (SecurityProtocol.SSL, ClientAuth.REQUESTED, True),
        (SecurityProtocol.SSL, ClientAuth.REQUIRED, False),
        (SecurityProtocol.PLAINTEXT, ClientAuth.REQUIRED, True),
        (SecurityProtocol.SASL_PLAINTEXT, ClientAuth.NONE, False),
        (SecurityProtocol.SASL_SSL, ClientAuth.NONE, False),
    ],
)
def test_a_public_listener_is_open_unless_every_client_proves_itself(
    protocol: SecurityProtocol, client_auth: ClientAuth, is_open: bool
) -> None:
    public, local = (
        KafkaListener(host=host, security_protocol=protocol, client_auth=client_auth)
        for host in ("0.0.0.0", "127.0.0.1")
    )

    assert open_listeners((public, local)) == ((public,) if is_open else ())


@pytest.mark.parametrize(
    ("agent", "listeners", "warnings"),
    [
        ({}, {}, 0),
        ({"kafka_host": "0.0.0.0"}, {}, 1),
        ({"kafka_host": "0.0.0.0", "http_host": "0.0.0.0"}, {}, 2),
        ({"kafka_host": "0.0.0.0", "http_host": "0.0.0.0"}, {"insecure": True}, 0),
        ({"kafka_host": "0.0.0.0", "http_host": "::"}, {"security_protocol": "SASL_SSL", **FILES}, 1),
        ({"kafka_host": "0.0.0.0"}, {"security_protocol": "SSL", "tls_client_auth": "required", **FILES}, 0),
    ],
)  # fmt: skip
def test_an_open_listener_is_said_loudly(
    agent: dict[str, Any], listeners: dict[str, Any], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _warn_of_strangers(
            all_settings(agent=AgentSettings(**agent), listeners=ListenerSettings(**listeners))
        )

    assert (
        len([record for record in caplog.records if record.getMessage().startswith("INSECURE")]) == warnings
    )


@pytest.mark.parametrize(
    ("agent", "listeners", "said"),
    [
        ({}, {"security_protocol": "SASL_PLAINTEXT"}, "MECHANISMS"),
        ({"one_address": "lb:1"}, {"listeners": "PLAINTEXT://h:1,SSL://h:2", **FILES}, "ONE_ADDRESS"),
    ],
)  # fmt: skip
def test_listeners_that_do_not_fit_the_agent_are_refused(
    agent: dict[str, Any], listeners: dict[str, Any], said: str
) -> None:
    settings = all_settings(agent=AgentSettings(**agent), listeners=ListenerSettings(**listeners))
    with pytest.raises(UserError, match=said):
        check_settings_fit(settings)


def test_any_list_of_addresses_keeps_its_order() -> None:
    assert list(parse_addresses("B://h:1,A://h:2")) == ["B", "A"]
