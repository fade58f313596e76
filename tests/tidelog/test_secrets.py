"""Secrets appear in no log, no argument of a process, no error and no answer of the HTTP side.

Two agents at the level debug and the commands get distinctive secrets in every setting that has one, work and
fail in many ways, and everything that they say is searched for any form of any secret.
"""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import confluent_kafka
import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from typer.testing import CliRunner

from tests.agent.security.logins.tokens import RSA_KEY, RULES, a_key_set, a_token
from tests.support.certificates import Authority, openssl
from tests.support.postgres import AGENT, _a_database, as_owner
from tests.support.waiting import wait_until
from tidelog.cli import app
from tidelog.devstack.ports import picked_ports
from tidelog.embedded.postgres import EmbeddedPostgres
from tidelog.embedded.s3_endpoint import S3Endpoint
from tidelog.errors import UserError

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

DATABASE, STORE, KEY, HTTP, WRONG, REGISTRY = (
    f"zq{name}93xk7w2v" for name in ("database", "store", "keypass", "http", "wrong", "registry")
)
PASSWORD = "zqpassword5t8n3r1m"
_LONGEST_S = 40.0
_ANY_PORTS = {"TIDELOG_KAFKA_PORT": "0", "TIDELOG_HTTP_PORT": "0"}
_OPEN = ("/metrics", "/ready", "/live", "/")


@dataclass(kw_only=True)
class Heard:
    """What processes said, by where it was heard, and the secrets that were in play."""

    secrets: dict[str, bytes] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)

    def found(self) -> list[tuple[str, str, str]]:
        """Returns where which secret was said, in which form, with what is around it."""
        forms = {
            (name, form): said
            for name, secret in self.secrets.items()
            for form, said in _forms(secret).items()
        }
        return [
            (where, f"{name} as {form}", _around(text, said))
            for where, text in self.texts.items()
            for (name, form), said in forms.items()
            if said in text
        ]


def _forms(secret: bytes) -> Mapping[str, bytes]:
    """Base64 has three forms, by what is in front of the secret. Their ends depend on what is behind it."""
    aligned = {
        f"base64 after {skipped}": base64.b64encode(b"\0" * skipped + secret)[(0, 2, 3)[skipped] : -4]
        for skipped in range(3)
    }
    # The first character of a form that is not aligned has bits of what is in front.
    shifted = {name: text if name.endswith("0") else text[1:] for name, text in aligned.items()}
    return {
        "itself": secret,
        "hex": secret.hex().encode(),
        "a URL's part": quote(secret, safe="").encode(),
        "escaped": repr(secret)[2:-1].encode(),
        **shifted,
    }


def _around(text: bytes, said: bytes) -> str:
    at = text.index(said)
    return text[max(0, at - 200) : at + len(said) + 100].decode(errors="replace")


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_the_search_finds_each_form(before: str) -> None:
    def finds(text: bytes) -> bool:
        return bool(Heard(secrets={"it": b"zq:secret/93"}, texts={"here": text}).found())

    said = before + "zq:secret/93" + "tail"
    assert finds(said.encode())
    assert finds(base64.b64encode(said.encode()))
    assert finds(said.encode().hex().encode())
    assert finds(quote(said, safe="").encode())
    assert not finds(b"zq:secret/94")


class Cluster:
    """Two agents, and the commands that talk to them."""

    def __init__(self, heard: Heard, directory: Path, environment: Mapping[str, str]) -> None:
        self.heard = heard
        self.directory = directory
        self.environment = environment
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "agent"],
                env={**self.environment, **more},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)

    def hear_logs(self) -> None:
        for log in self.directory.glob("*.log"):
            self.heard.texts[log.name] = log.read_bytes()

    def hear_arguments(self) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                said = "\n".join(process.cmdline()).encode()
            except psutil.Error:
                continue
            self.heard.texts[f"arguments of {said[:60]!r}"] = said

    def run(
        self,
        *arguments: str,
        stdin: str = "",
        fails: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Runs a command, and returns its standard output. One that tries for long is ended."""
        environment = {**self.environment, "TIDELOG_CLIENT_TIMEOUT_S": "5", **settings}
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            said, errors = process.communicate(stdin.encode(), timeout=_LONGEST_S if fails else 120)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
        where = f"{len(self.heard.texts)}: tidelog {' '.join(arguments)} {sorted(settings)}"
        self.heard.texts[where] = said + errors
        assert (process.returncode != 0) == fails, (where, errors.decode()[-2_000:])
        assert b"Traceback" not in errors, (where, errors.decode()[-2_000:])
        return said.decode()

    def fail(self, *arguments: str, **settings: str) -> None:
        """Runs a command in this process, which is faster. It must end with an error for its user."""
        environment = {**self.environment, "TIDELOG_CLIENT_TIMEOUT_S": "5", **settings}
        done = CliRunner().invoke(app, arguments, env=environment)
        error = done.exception
        assert isinstance(error, UserError), (arguments, settings, error)
        where = f"{len(self.heard.texts)}: tidelog {' '.join(arguments)} {sorted(settings)}"
        self.heard.texts[where] = f"{done.output}\n{error.message}\n{error.fix}".encode()

    def get(self, port: int, path: str, user: str | None = "ann", password: str = PASSWORD) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        if user is not None:
            proof = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {proof}")
        where = f"{len(self.heard.texts)}: GET {path} as {user}"
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                self.heard.texts[where] = answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            self.heard.texts[where] = refused.read() + str(refused.headers).encode()
            return refused.code


def an_encrypted_key(directory: Path, plain: Path) -> Path:
    encrypted = directory / "encrypted.key"
    openssl("pkey", "-in", plain, "-aes256", "-passout", f"pass:{KEY}", "-out", encrypted)
    return encrypted


def with_password(url: str) -> str:
    role, _, rest = url.removeprefix("postgresql://").partition("@")
    return f"postgresql://{role}:{DATABASE}@{rest}"


@pytest.fixture(scope="module")
def heard(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    directory = tmp_path_factory.mktemp("secrets")
    heard, token = Heard(), a_token(now_s=int(time.time()))
    encryption_key = os.urandom(32)
    key_file = directory / "encryption.keys"
    key_file.write_text(f"first {base64.b64encode(encryption_key).decode()}\n")
    heard.secrets |= {
        "the database's password": DATABASE.encode(),
        "the store's secret key": STORE.encode(),
        "the password of a TLS key": KEY.encode(),
        "a user's password": PASSWORD.encode(),
        "a wrong password": WRONG.encode(),
        "a password of an HTTP URL": HTTP.encode(),
        "a password of another URL": REGISTRY.encode(),
        "a token's signature": token.rpartition(".")[2].encode(),
        "the key of topics": encryption_key,
    }

    with ExitStack() as opened:
        url = with_password(opened.enter_context(_a_database(postgres, "tidelog_secrets", AGENT)))
        endpoint = opened.enter_context(S3Endpoint.start(directory / "s3", secret_key=STORE))
        (directory / "s3" / "buckets" / "log").mkdir(parents=True, exist_ok=True)
        authority = Authority.make(directory / "ca")
        own = authority.issue()
        ports = opened.enter_context(picked_ports(4))
        keys = directory / "keys.json"
        keys.write_bytes(a_key_set({"one": RSA_KEY}))
        settings = {
            "DATABASE_URL": url,
            "STORE_URL": endpoint.store_url("log", "x"),
            "S3_ACCESS_KEY": endpoint.access_key,
            "S3_SECRET_KEY": STORE,
            "SECURITY_PROTOCOL": "SASL_SSL",
            "TLS_CERTIFICATE_FILE": str(own.certificate),
            "TLS_KEY_FILE": str(an_encrypted_key(directory, own.key)),
            "TLS_KEY_PASSWORD": KEY,
            "TLS_CA_FILE": authority.file,
            "PEER_TLS": "required",
            "SASL_MECHANISMS": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "SASL_FAILED_DELAY_MS": "10",
            "OAUTH_JWKS": keys.as_uri(),
            "OAUTH_ISSUER": RULES.issuer,
            "OAUTH_AUDIENCE": RULES.audience,
            "AUTHORIZER": "true",
            "SUPER_USERS": "User:ann",
            "HTTP_AUTHENTICATION": "true",
            "ENCRYPTION_PROVIDER": "file",
            "ENCRYPTION_KEY": str(key_file),
            "AUDIT_TOPIC": "true",
            "LOG_LEVEL": "debug",
            "LINGER_MS": "20",
        }
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")},
            **{f"TIDELOG_{name}": value for name, value in settings.items()},
            "COLUMNS": "300",
        }
        cluster = Cluster(heard, directory, environment)
        opened.callback(cluster.stop)
        cluster.run("users", "add", "ann", "--password-file", "-", stdin=PASSWORD)
        for number, (kafka, http) in enumerate((ports[:2], ports[2:])):
            cluster.start(
                f"agent-{number}",
                TIDELOG_KAFKA_PORT=str(kafka),
                TIDELOG_HTTP_PORT=str(http),
                TIDELOG_ZONE="ab"[number],
            )
        for port in ports[1::2]:
            wait_until(lambda port=port: _is_ready(port), timeout_s=120)  # type: ignore[misc]
        with psycopg.connect(as_owner(url)) as connection:
            secrets = connection.execute("SELECT unnest(secrets) FROM peer_secrets").fetchall()
            heard.secrets |= {f"peer secret {i}": bytes(row[0]) for i, row in enumerate(secrets)}
            stored = connection.execute("SELECT stored_key, server_key FROM user_credentials").fetchall()
            for i, row in enumerate(stored):
                heard.secrets |= {f"stored key {i}": bytes(row[0]), f"server key {i}": bytes(row[1])}
        assert len(heard.secrets) > 10
        _use(cluster, ports, authority, token)
        cluster.hear_arguments()
        _fail(cluster, ports, directory)
        for port in ports[1::2]:
            for path in (
                "/metrics",
                "/ready",
                "/live",
                "/",
                "/v1/openapi.json",
                "/v1/cluster",
                "/v1/clients",
            ):
                assert cluster.get(port, path) == 200
        cluster.stop()
        cluster.hear_logs()
        yield heard


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
            return True
    except OSError:
        return False


def _login(ports: Sequence[int], authority: Authority, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"localhost:{ports[0]}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority.file,
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "sasl.password": password,
        "log_level": 0,
    }


def _use(cluster: Cluster, ports: Sequence[int], authority: Authority, token: str) -> None:
    """Works, and fails to log in, by each mechanism and by HTTP."""
    admin = AdminClient(_login(ports, authority, "SCRAM-SHA-512", PASSWORD))
    sealed = {"tidelog.encryption": "on", "tidelog.history": "off"}
    for name, config in (("plain", {}), ("sealed", sealed)):
        admin.create_topics([NewTopic(name, 2, config=config)])[name].result(60)
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        producer = confluent_kafka.Producer(_login(ports, authority, mechanism, PASSWORD))
        for topic in ("plain", "sealed"):
            producer.produce(topic, b"value")
        assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer(
        {
            **_login(ports, authority, "SCRAM-SHA-256", PASSWORD),
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["plain", "sealed"])
    wait_until(lambda: (found := consumer.poll(1)) is not None and found.error() is None, timeout_s=60)
    consumer.close()
    by_token: dict[str, Any] = {
        name: value
        for name, value in _login(ports, authority, "OAUTHBEARER", "").items()
        if name not in ("sasl.username", "sasl.password")
    }
    for said in (token, token[:-4] + "AAAA"):
        answer: Any = lambda _, said=said: (said, time.time() + 300)  # noqa: E731
        client = AdminClient({**by_token, "oauth_cb": answer})
        client.poll(1)
        if said == token:
            client.list_topics(timeout=30)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        with pytest.raises(confluent_kafka.KafkaException):
            AdminClient(_login(ports, authority, mechanism, WRONG)).list_topics(timeout=3)
    broker = ConfigResource(ConfigResource.Type.BROKER, str(next(iter(admin.list_topics().brokers))))
    configs = admin.describe_configs([broker])[broker].result(30)
    cluster.heard.texts["configs of a broker"] = json.dumps(
        {name: [entry.value, entry.is_sensitive] for name, entry in configs.items()}
    ).encode()
    for port in ports[1::2]:
        assert cluster.get(port, "/v1/topics") == 200
        assert cluster.get(port, "/v1/topics/sealed") == 200
        assert cluster.get(port, "/v1/topics", password=WRONG) == 401
        assert cluster.get(port, "/v1/topics", user=None) == 401


def _fail(cluster: Cluster, ports: Sequence[int], directory: Path) -> None:
    """Runs commands with right settings, and with each setting wrong."""
    http = f"http://127.0.0.1:{ports[1]}"
    right = {"TIDELOG_HTTP_URL": http, "TIDELOG_HTTP_USER": "ann", "TIDELOG_HTTP_PASSWORD": PASSWORD}
    cluster.run("topics", "list", settings=right)
    cluster.run("clients", settings=right)
    cluster.run("keys", "rotate", "sealed")
    cluster.run("doctor", settings=right)
    cluster.run("peers", "renew-secret")
    cluster.run("users", "passwd", "ann", "--password-file", "-", stdin=PASSWORD)
    cluster.run("users", "add", "ann", "--password-file", "-", stdin=WRONG, fails=True)
    cluster.fail("topics", "list", **(right | {"TIDELOG_HTTP_PASSWORD": WRONG}))
    cluster.fail("topics", "list", **(right | {"TIDELOG_HTTP_USER": ""}))
    urls = (
        f"http://ann:{HTTP}@127.0.0.1:{ports[1]}",
        f"http://ann:{HTTP}@127.0.0.1:1",
        f"ann:{HTTP}@127.0.0.1:{ports[1]}",
        f"http://ann:{HTTP}@127.0.0.1:port",
    )
    for number, url in enumerate(urls):
        command = (("topics", "list"), ("clients",))[number % 2]
        cluster.fail(*command, TIDELOG_HTTP_URL=url)
    away = cluster.environment["TIDELOG_DATABASE_URL"].partition("@")[0]
    dsns = (
        f"{away}@127.0.0.1:1/none",
        f"{away}@nowhere.invalid/none",
        f"{away}@/none?host=/nowhere",
        f"postgresql//tidelog:{DATABASE}@127.0.0.1/none",
        f"postgresql://tidelog:{DATABASE}/x@127.0.0.1/none",
        f"postgresql://tidelog:{DATABASE}@127.0.0.1:port/none",
        f"host=127.0.0.1 port=1 password={DATABASE} dbname=none",
        f"host=127.0.0.1 password={DATABASE} nonsense",
    )
    for number, dsn in enumerate(dsns):
        settings = {"TIDELOG_DATABASE_URL": dsn, "TIDELOG_DATABASE_CONNECT_TIMEOUT_S": "2"}
        command = (("users", "list"), ("migrate",), ("doctor",))[number % 3]
        cluster.fail(*command, **settings)
    for settings in (
        {"TIDELOG_S3_ACCESS_KEY": ""},
        {"TIDELOG_STORE_URL": f"s3://tidelog:{REGISTRY}@log/x"},
        {"TIDELOG_STORE_URL": f"s3://log/x?endpoint=http://u:{REGISTRY}@127.0.0.1:1"},
    ):
        cluster.fail("doctor", **settings, **right)
    options = directory / "client.properties"
    options.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password={WRONG}\n"
    )
    bootstrap = {"TIDELOG_BOOTSTRAP": f"127.0.0.1:{ports[0]}", "TIDELOG_CLIENT_CONFIG_FILE": str(options)}
    cluster.run("produce", "plain", stdin="value\n", fails=True, settings=bootstrap)
    cluster.run("consume", "plain", fails=True, settings=bootstrap)
    options.write_text(f"sasl.passwrod={WRONG}\nsasl.password {WRONG}\n")
    cluster.fail("produce", "plain", **bootstrap)
    for settings in (
        {"TIDELOG_TLS_KEY_PASSWORD": WRONG},
        {"TIDELOG_OAUTH_JWKS": f"https://u:{REGISTRY}@127.0.0.1/keys"},
        {"TIDELOG_DATABASE_URL": f"postgresql//tidelog:{DATABASE}@127.0.0.1/none"},
    ):
        cluster.run("agent", fails=True, settings={**settings, **_ANY_PORTS})
    # These wait for what is away until they are stopped.
    waiting = (
        {"TIDELOG_DATABASE_URL": f"{away}@127.0.0.1:1/none"},
        {"TIDELOG_S3_SECRET_KEY": WRONG},
        {"TIDELOG_ENCRYPTION_KEY": WRONG},
        {"TIDELOG_S3_SECERT_KEY": WRONG},
    )
    started = [
        cluster.start(f"waiting-{number}", **settings, **_ANY_PORTS)
        for number, settings in enumerate(waiting)
    ]
    for number, process in enumerate(started):
        log = directory / f"waiting-{number}.log"
        deadline_s = time.monotonic() + 60
        while b"event=starting" not in log.read_bytes() and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        time.sleep(3)
        process.terminate()


def test_no_secret_is_in_what_agents_and_commands_say(heard: Heard) -> None:
    found = heard.found()

    assert not found, "\n".join(f"{what} in {where}: {around}" for where, what, around in found)


def test_the_agents_did_what_could_give_secrets_away(heard: Heard) -> None:
    """The search above would pass if nothing had happened."""
    log = heard.texts["agent-0.log"] + heard.texts["agent-1.log"]
    for said in (
        b'"event":"login"',
        b'"event":"login failed"',
        b"agent serves",
        b"OAUTHBEARER",
    ):
        assert said in log
    assert any(where.startswith("arguments of") for where in heard.texts)
