"""Every client connects with TLS and logs in by each mechanism, and fails with a wrong password.

One agent has a listener of each security protocol, and one more that wants certificates of clients.
"""

import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import confluent_kafka.admin
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.security.logins.tokens import RSA_KEY, RULES, a_key_set, a_token
from tests.agent.security.tls.test_process import is_ready
from tests.clients.foreign import PROGRAMS
from tests.clients.logins import (
    Identity,
    JavaLogins,
    Login,
    LoginFailed,
    Work,
    by_aiokafka,
    by_confluent,
    by_kafka_python,
    by_program,
)
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix
from tests.clients.not_offered import NOT_OFFERED
from tests.support.certificates import Authority
from tests.support.java import Java
from tests.support.waiting import wait_until
from tidelog.devstack.ports import picked_ports
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

pytestmark = pytest.mark.clients

SESSION_MS = 2_500
USER, PASSWORD = "ann", "a secret, of = signs"
CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "kafka-clients", *PROGRAMS)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
REFUSALS = {
    "confluent-kafka": "_AUTHENTICATION",
    "aiokafka": "KafkaConnectionError",  # it logs the refusal and raises that no server could be reached
    "kafka-python": "Unable to bootstrap",  # the same
    "kafka-clients": "SaslAuthenticationException",
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "sarama": "SASL Authentication failed",
    "segmentio/kafka-go": "SASL Authentication Failed",
    "kafkajs": "KafkaJSSASLAuthenticationError",
    "rust-rdkafka": "Authentication",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A running agent. `ports` are by the listener's name, and `HTTP`'s."""

    ports: Mapping[str, int]
    authority: Authority

    def identity(self, listener: str, mechanism: str = "", password: str = PASSWORD) -> Identity:
        is_token = mechanism == "OAUTHBEARER"
        return Identity(
            servers=f"localhost:{self.ports[listener]}",
            protocol="SSL" if listener == "MUTUAL" else listener,
            authority=self.authority.file,
            mechanism=mechanism,
            user=USER if mechanism and not is_token else "",
            password=password if mechanism and not is_token else "",
            token=a_token(now_s=int(time.time())) if is_token else "",
            shown=self.authority.issue("/CN=ann") if listener == "MUTUAL" else None,
        )

    def a_topic(self) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        admin = confluent_kafka.admin.AdminClient(
            {
                "bootstrap.servers": f"localhost:{self.ports['SSL']}",
                "security.protocol": "SSL",
                "ssl.ca.location": self.authority.file,
            }
        )
        admin.create_topics([confluent_kafka.admin.NewTopic(name, 1)])[name].result(60)
        return name

    def metric(self, name: str, **labels: str) -> float:
        """The value of a counter now. 0.0: it has not counted yet."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['HTTP']}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())


@pytest.fixture(scope="module")
def secured(module_directory: Path) -> Iterator[Secured]:
    authority = Authority.make(module_directory / "ca")
    own = authority.issue()
    keys, store = module_directory / "keys.json", module_directory / "store"
    keys.write_bytes(a_key_set({"one": RSA_KEY}))
    store.mkdir()
    names = ("SASL_PLAINTEXT", "SASL_SSL", "SSL", "MUTUAL", "HTTP", "PEER")
    with picked_ports(len(names)) as picked, (module_directory / "agent.log").open("wb") as log:
        ports = dict(zip(names, picked, strict=True))
        kafka_ports = [(name, port) for name, port in ports.items() if name not in ("HTTP", "PEER")]
        postgres = EmbeddedPostgres(module_directory / "postgres", EmbeddedPostgresSettings(durable=False))
        settings = {
            "DATABASE_URL": postgres.start(),
            "STORE_URL": store.as_uri(),
            "LISTENERS": ",".join(f"{name}://127.0.0.1:{port}" for name, port in kafka_ports),
            "ADVERTISED_LISTENERS": ",".join(f"{name}://localhost:{port}" for name, port in kafka_ports),
            "LISTENER_SECURITY_PROTOCOL_MAP": "MUTUAL:SSL",
            "TLS_CERTIFICATE_FILE": str(own.certificate),
            "TLS_KEY_FILE": str(own.key),
            "TLS_CA_FILE": authority.file,
            "TLS_CLIENT_AUTH": "MUTUAL:required",
            "SASL_MECHANISMS": ",".join(MECHANISMS),
            "SASL_FAILED_DELAY_MS": "10",
            "SASL_FAILED_DELAY_MAX_MS": "20",
            "CONNECTIONS_MAX_REAUTH_MS": str(SESSION_MS),
            "OAUTH_JWKS": keys.as_uri(),
            "OAUTH_ISSUER": RULES.issuer,
            "OAUTH_AUDIENCE": RULES.audience,
            "HTTP_PORT": str(ports["HTTP"]),
            "PEER_PORT": str(ports["PEER"]),
            "LINGER_MS": "20",
            "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        environment = os.environ | {f"TIDELOG_{name}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "tidelog"]
        subprocess.run([*command, "migrate"], env=environment, check=True, timeout=120, capture_output=True)
        subprocess.run(
            [*command, "users", "add", USER, "--password-file", "-"],
            env=environment,
            input=f"{PASSWORD}\n".encode(),
            check=True,
            timeout=60,
            capture_output=True,
        )
        process = subprocess.Popen([*command, "agent"], env=environment, stderr=log)
        try:
            wait_until(lambda: is_ready(ports["HTTP"]), timeout_s=120)
            yield Secured(ports=ports, authority=authority)
        finally:
            process.terminate()
            ended = process.wait(60)
            postgres.stop()
        assert ended == 0


@pytest.fixture(scope="module")
def login_of(java: Java, matrix: Matrix, module_directory: Path) -> Iterator[Callable[[str], Login]]:
    """How a client logs in, by its name."""
    with ExitStack() as opened:
        found: dict[str, Login] = {
            "confluent-kafka": by_confluent,
            "aiokafka": by_aiokafka,
            "kafka-python": by_kafka_python,
        }

        def of(client: str) -> Login:
            if client == "kafka-clients" and client not in found:
                started = JavaLogins(java, module_directory)
                opened.callback(started.close)
                found[client] = started.login
            elif client not in found:
                program = PROGRAMS[client]
                program.make()
                matrix.note_version(client, program.answer("version")["version"])
                found[client] = by_program(program)
            return found[client]

        yield of


def each_client(feature: str) -> pytest.MarkDecorator:
    """Once per client that offers it, marked as showing it."""
    names = [name for name in CLIENTS if (name, feature) not in NOT_OFFERED]
    cases = [pytest.param(name, marks=tried(name, feature), id=name) for name in names]
    return pytest.mark.parametrize("client", cases)


Logins = Callable[[str], Login]


@each_client("TLS")
def test_a_client_connects_by_tls(client: str, secured: Secured, login_of: Logins) -> None:
    work = Work(topic=secured.a_topic())

    assert login_of(client)(secured.identity("SSL"), work) == work.values()


@each_client("TLS: a client certificate")
def test_a_client_shows_its_certificate(client: str, secured: Secured, login_of: Logins) -> None:
    work = Work(topic=secured.a_topic())

    assert login_of(client)(secured.identity("MUTUAL"), work) == work.values()


def _logs_in(mechanism: str, client: str, secured: Secured, login_of: Logins) -> None:
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        work = Work(topic=secured.a_topic())
        done = partial(secured.metric, "tidelog_logins_total", mechanism=mechanism, outcome="done")
        before = done()

        assert login_of(client)(secured.identity(listener, mechanism), work) == work.values()
        wait_until(lambda: done() > before)  # noqa: B023 - an agent with much to do answers with its last text


@each_client("login: PLAIN, with and without TLS")
def test_a_client_logs_in_by_plain(client: str, secured: Secured, login_of: Logins) -> None:
    _logs_in("PLAIN", client, secured, login_of)


@each_client("login: SCRAM-SHA-256, with and without TLS")
def test_a_client_logs_in_by_scram_sha_256(client: str, secured: Secured, login_of: Logins) -> None:
    _logs_in("SCRAM-SHA-256", client, secured, login_of)


@each_client("login: SCRAM-SHA-512, with and without TLS")
def test_a_client_logs_in_by_scram_sha_512(client: str, secured: Secured, login_of: Logins) -> None:
    _logs_in("SCRAM-SHA-512", client, secured, login_of)


@each_client("login: OAUTHBEARER, with and without TLS")
def test_a_client_logs_in_by_a_token(client: str, secured: Secured, login_of: Logins) -> None:
    _logs_in("OAUTHBEARER", client, secured, login_of)


@each_client("login: a wrong password is refused")
def test_a_client_with_a_wrong_password_fails(client: str, secured: Secured, login_of: Logins) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        work = Work(topic=secured.a_topic())

        with pytest.raises(LoginFailed, match=REFUSALS[client]):
            login_of(client)(secured.identity("SASL_SSL", mechanism, "wrong"), work)


@each_client("login: again on a connection (KIP-368)")
def test_a_client_logs_in_again_on_its_connection(client: str, secured: Secured, login_of: Logins) -> None:
    logins = partial(secured.metric, "tidelog_logins_total", mechanism="SCRAM-SHA-256", outcome="done")
    connections = partial(secured.metric, "tidelog_tls_handshakes_total", use="kafka", outcome="done")
    work = Work(topic=secured.a_topic(), count=20, every_ms=250)
    logged_in, connected = logins(), connections()

    assert login_of(client)(secured.identity("SASL_SSL", "SCRAM-SHA-256"), work) == work.values()
    assert logins() - logged_in > connections() - connected
