"""Users of a cluster that asks for logins: made by `tidelog users` and by Kafka's own tools, and used by
Kafka's own clients.
"""

import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.agent.security.logins.tokens import RULES, a_key_set, a_token
from tests.support.java import Java, JavaFailed
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

_CONFIGS = "kafka.admin.ConfigCommand"
_MODULES = "org.apache.kafka.common.security"
PROVIDER_KEY = rsa.generate_private_key(65_537, 2048)
PASSWORD = 'a "quoted" secret; =,'


pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def stack(module_directory: Path) -> Iterator[Stack]:
    """Two agents that take every mechanism, and ask for a new login every three seconds."""
    keys = module_directory / "keys.json"
    keys.write_bytes(a_key_set({"one": PROVIDER_KEY}))
    environment = {
        "TIDELOG_MEMBERSHIP_LEASE_S": "60",
        "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
        "TIDELOG_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "TIDELOG_SASL_MECHANISMS": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "TIDELOG_CONNECTIONS_MAX_REAUTH_MS": "3000",
        "TIDELOG_OAUTH_JWKS": keys.as_uri(),
        "TIDELOG_OAUTH_ISSUER": RULES.issuer,
        "TIDELOG_OAUTH_AUDIENCE": RULES.audience,
    }
    settings = StackSettings(
        environment=HERE,
        data_dir=module_directory / "stack",
        store="local",
        agent_environment=environment,
    )
    with Stack(settings) as running:
        users(running, "add", "admin", password=PASSWORD)
        yield running


def users(stack: Stack, command: str, *arguments: str, password: str | None = None) -> str:
    """What `tidelog users` prints. The password comes from its standard input."""
    options = [] if password is None else ["--password-file", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "users", command, *arguments, *options],
        env={**HERE.variables, **stack.addresses.as_environment(), "COLUMNS": "200"},
        input=None if password is None else f"{password}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def properties(directory: Path, mechanism: str, jaas: str, **others: str) -> str:
    """A file with the settings of a Java client."""
    file = directory / f"{uuid.uuid4().hex}.properties"
    lines = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas,
        **{name.replace("_", "."): value for name, value in others.items()},
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(file)


def as_user(directory: Path, mechanism: str, user: str, password: str) -> str:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    quoted = password.replace('"', '\\\\"')
    return properties(
        directory, mechanism, f'{_MODULES}.{module} required username="{user}" password="{quoted}";'
    )


def produced_and_consumed(java: Java, stack: Stack, config: str) -> list[str]:
    """What a console consumer reads of three lines of a console producer."""
    topic, servers = f"topic-{uuid.uuid4().hex[:8]}", stack.addresses.bootstrap
    java.run(
        "org.apache.kafka.tools.ConsoleProducer",
        ["--bootstrap-server", servers, "--topic", topic, "--producer.config", config],
        stdin="one\ntwo\nthree\n",
    )
    read = java.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", servers, "--topic", topic, "--consumer.config", config),
            *("--from-beginning", "--max-messages", "3", "--timeout-ms", "30000"),
        ],
    )
    return read.split()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_java_clients_log_in_with_a_password(
    mechanism: str, stack: Stack, java: Java, tmp_path: Path
) -> None:
    config = as_user(tmp_path, mechanism, "admin", PASSWORD)

    assert produced_and_consumed(java, stack, config) == ["one", "two", "three"]


def test_the_java_clients_log_in_with_a_token(
    stack: Stack, java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token.jwt"
    token.write_text(a_token(key=PROVIDER_KEY, now_s=int(time.time())))
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"
    )
    config = properties(
        tmp_path,
        "OAUTHBEARER",
        f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        sasl_oauthbearer_token_endpoint_url=token.as_uri(),
        sasl_login_callback_handler_class=f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
    )

    assert produced_and_consumed(java, stack, config) == ["one", "two", "three"]


def test_kafka_configs_makes_describes_changes_and_deletes_users(
    stack: Stack, java: Java, tmp_path: Path
) -> None:
    admin = ["--bootstrap-server", stack.addresses.bootstrap]
    admin += ["--command-config", as_user(tmp_path, "SCRAM-SHA-512", "admin", PASSWORD)]
    alice = ["--entity-type", "users", "--entity-name", "alice"]

    java.run(
        _CONFIGS, [*admin, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=one]", *alice]
    )
    java.run(_CONFIGS, [*admin, "--alter", "--add-config", "SCRAM-SHA-512=[password=one]", *alice])
    described = java.run(_CONFIGS, [*admin, "--describe", *alice])
    with_512 = as_user(tmp_path, "SCRAM-SHA-512", "alice", "one")

    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert "alice" in users(stack, "list")
    assert produced_and_consumed(java, stack, as_user(tmp_path, "SCRAM-SHA-256", "alice", "one"))
    assert produced_and_consumed(java, stack, with_512)

    java.run(_CONFIGS, [*admin, "--alter", "--delete-config", "SCRAM-SHA-512", *alice])
    time.sleep(1.0)  # what agents take to learn of it
    with pytest.raises(JavaFailed, match="SCRAM-SHA-512"):
        java.run(
            _CONFIGS,
            [
                "--bootstrap-server",
                stack.addresses.bootstrap,
                "--command-config",
                with_512,
                "--describe",
                *alice,
            ],
        )
    with pytest.raises(JavaFailed, match=r"does not exist|Invalid config"):
        java.run(_CONFIGS, [*admin, "--alter", "--delete-config", "SCRAM-SHA-512", *alice])


def test_a_java_producer_authenticates_again_without_a_gap(stack: Stack, java: Java, tmp_path: Path) -> None:
    config = as_user(tmp_path, "SCRAM-SHA-256", "admin", PASSWORD)
    before = logins(stack)

    said = java.run(
        "org.apache.kafka.tools.ProducerPerformance",
        [
            *("--topic", f"topic-{uuid.uuid4().hex[:8]}", "--num-records", "100", "--throughput", "10"),
            *("--record-size", "100", "--producer-props", f"bootstrap.servers={stack.addresses.bootstrap}"),
            *("--producer.config", config),
        ],
    )

    assert "100 records sent" in said
    assert logins(stack) - before >= 4  # a connection of ten seconds alone has three


def logins(stack: Stack) -> float:
    found = 0.0
    for agent in stack.agents:
        with urllib.request.urlopen(f"{agent.address.http_url}/metrics", timeout=30) as response:
            for line in response.read().decode().splitlines():
                if line.startswith("tidelog_logins_total") and 'outcome="done"' in line:
                    found += float(line.rpartition(" ")[2])
    return found


def test_users_are_added_listed_changed_and_removed(stack: Stack) -> None:
    users(stack, "add", "bea", password="one")
    assert "bea" in users(stack, "list", "--json")
    users(stack, "passwd", "bea", password="two")
    users(stack, "remove", "bea")

    assert "bea" not in users(stack, "list")


@pytest.mark.parametrize(
    ("arguments", "stdin", "reason"),
    [
        (("add", "admin", "--password-file", "-"), "secret\n", "There is a user admin already"),
        (("passwd", "nobody", "--password-file", "-"), "secret\n", "There is no user nobody"),
        (("remove", "nobody"), "", "There is no user nobody"),
        (("add", "cho"), "", "no terminal"),
        (("add", "cho", "--password-file", "-"), "\n", "1 to 4096 bytes"),
        (("add", "cho", "--password-file", "/nowhere"), "", "cannot be read"),
        (("add", "cho", "--password", "secret"), "", "No such option"),
        (("add", "c" * 256, "--password-file", "-"), "secret\n", "1 to 255 bytes"),
    ],
)
def test_what_cannot_be_done_is_said(
    stack: Stack, arguments: tuple[str, ...], stdin: str, reason: str
) -> None:
    environment: Mapping[str, str] = {**HERE.variables, **stack.addresses.as_environment(), "COLUMNS": "200"}

    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "users", *arguments],
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
