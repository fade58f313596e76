"""`tidelog clients` and the configs of `tidelog topics`, against a running stack."""

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner, Result

from tidelog.cli import app
from tidelog.devstack.stack import Stack
from tidelog.errors import UserError

Run = Callable[..., Result]


@pytest.fixture
def run(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("clients")` on the stack's cluster; fails the test unless the command succeeds."""
    for name, value in stack.addresses.as_environment().items():
        monkeypatch.setenv(name, value)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, [*arguments], catch_exceptions=False, env={"COLUMNS": "250"})
        assert result.exit_code == 0, result.output
        return result

    return invoke


@pytest.fixture
def connected(stack: Stack) -> Iterator[tuple[Producer, Consumer]]:
    """A producer that says its zone is b, and a consumer that reads what it wrote; both connected."""
    bootstrap = stack.addresses.bootstrap
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": "checkout,tidelog_zone=b", "log_level": 0}
    )
    producer.produce("watched", b"x")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "client.id": "billing", "group.id": "unused", "log_level": 0}
    )
    assert consumer.list_topics("watched", timeout=30).topics["watched"].error is None
    yield producer, consumer
    consumer.close()


@pytest.mark.usefixtures("connected")
def test_clients_are_listed_with_library_version_zone_and_agent(run: Run, stack: Stack) -> None:
    listed = json.loads(run("clients", "--json").stdout)
    shown = run("clients").stdout
    each = run("clients", "--connections").stdout
    narrow = CliRunner().invoke(app, ["clients"], catch_exceptions=False, env={"COLUMNS": "80"}).stdout

    of_producer = [found for found in listed if found["client_id"] == "checkout,tidelog_zone=b"]
    assert of_producer
    assert {found["zone"] for found in of_producer} == {"b"}
    assert {found["software_name"] for found in of_producer} == {"confluent-kafka-python"}
    assert all(found["software_version"][0].isdigit() for found in of_producer)
    assert all(found["requests"] > 0 for found in of_producer)
    assert {found["agent_zone"] for found in listed} <= set(stack.settings.zones)
    assert {found["client_id"] for found in listed} >= {"checkout,tidelog_zone=b", "billing"}
    assert "confluent-kafka-python" in shown
    assert "billing" in shown
    assert "127.0.0.1:" in each
    assert "checkout,tidelog_zone=b\n  library confluent-kafka-python" in narrow
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_an_agent_that_does_not_answer_is_named_and_the_others_are_shown(
    new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = new_stack(agent_environment={"TIDELOG_MEMBERSHIP_LEASE_S": "120"})
    stack.kill(1)  # its lease runs on
    monkeypatch.setenv("TIDELOG_HTTP_URL", stack.addresses.http_urls[0])

    result = CliRunner().invoke(app, ["clients"], catch_exceptions=False)

    assert result.exit_code == 0
    assert "No Kafka client is connected" in result.stdout
    assert "Not asked:" in result.stderr
    assert "(zone b)" in result.stderr


def test_configs_are_set_shown_with_their_source_and_unset(run: Run) -> None:
    run("topics", "create", "tuned")

    run("topics", "set", "tuned", "retention.ms=3600000", "max.message.bytes=2000000")
    run("topics", "unset", "tuned", "max.message.bytes")
    configs = {
        config["name"]: config
        for config in json.loads(run("topics", "describe", "tuned", "--json").stdout)["configs"]
    }
    shown = run("topics", "describe", "tuned").stdout
    explained = run("topics", "describe", "tuned", "--explain").stdout

    assert (configs["retention.ms"]["value"], configs["retention.ms"]["source"]) == ("3600000", "topic")
    assert configs["max.message.bytes"]["source"] == "default"
    assert configs["max.message.bytes"]["value"] == configs["max.message.bytes"]["default"]
    assert "3600000" in shown
    assert "retention.bytes" in shown
    assert configs["retention.ms"]["documentation"] in explained


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("topics", "set", "tuned", "retention.ms"), "NAME=VALUE"),
        (("topics", "set", "tuned", "no.such.config=1"), "no.such.config"),
        (("topics", "unset", "tuned", "no.such.config"), "no config no.such.config"),
        (("topics", "set", "no-such-topic", "retention.ms=1"), "tidelog topics list"),
        (("topics", "set", "tuned", "retention.ms=soon"), "retention.ms"),
    ],
)
def test_a_mistake_in_a_config_is_told_with_what_to_do(
    run: Run, arguments: tuple[str, ...], told: str
) -> None:
    del run  # its environment is what is wanted
    result = CliRunner().invoke(app, [*arguments])

    assert isinstance(result.exception, UserError)
    assert told in str(result.exception)
