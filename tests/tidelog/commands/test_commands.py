"""The commands against a running stack, as a user runs them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from tidelog.agents_client import TopicsClient
from tidelog.cli import app
from tidelog.demo.flights import as_records, read_flights
from tidelog.demo.transfer import consume_and_compare, produce_flights
from tidelog.devstack.stack import Stack
from tidelog.errors import UserError

Run = Callable[..., Result]


@pytest.fixture
def run(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("topics", "list")` on the stack's cluster; fails the test unless the command succeeds."""
    for name, value in stack.addresses.as_environment().items():
        monkeypatch.setenv(name, value)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, [*arguments], input=stdin, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    return invoke


def test_a_schema_is_read_from_a_file(run: Run, tmp_path: Path) -> None:
    run("topics", "create", "shaped", "--config", "tidelog.value.format=json")
    (tmp_path / "schema.json").write_text('{"properties": {}}')
    (tmp_path / "schema.ds").write_bytes(b"\x0a\xff")

    run("topics", "set", "shaped", f"tidelog.value.schema=@{tmp_path}/schema.json")
    run("topics", "set", "shaped", f"tidelog.key.schema=@{tmp_path}/schema.ds")

    described = json.loads(run("topics", "describe", "shaped", "--json").stdout)
    found = {config["name"]: config["value"] for config in described["configs"]}
    assert found["tidelog.value.schema"] == '{"properties": {}}'
    assert found["tidelog.key.schema"] == base64.b64encode(b"\x0a\xff").decode()


def test_lines_produced_with_keys_are_consumed_in_every_format(run: Run) -> None:
    run("topics", "create", "lines", "--partitions", "1")
    run("produce", "lines", "--key-separator", ":", stdin="a:1\nno key\n:empty key\nb:\n")

    options = ("lines", "--from-beginning", "--max-messages", "4")
    values = run("consume", *options).stdout
    objects = [
        json.loads(line)
        for line in run("consume", *options, "--format", "json", "--zone", "b").stdout.splitlines()
    ]
    full = run("consume", *options, "--format", "full").stdout

    assert values == "1\nno key\nempty key\n\n"
    assert [(found["offset"], found["key"], found["value"]) for found in objects] == [
        (0, "a", "1"), (1, None, "no key"), (2, "", "empty key"), (3, "b", ""),
    ]  # fmt: skip
    assert "0:1" in full
    assert "null no key" in full


def test_consuming_from_now_on_ends_when_nothing_comes(run: Run) -> None:
    run("topics", "create", "quiet")
    run("produce", "quiet", stdin="before\n")

    assert run("consume", "quiet", "--idle-s", "0.5").stdout == ""


def test_topics_are_created_described_altered_listed_and_deleted(run: Run) -> None:
    created = json.loads(
        run("topics", "create", "t", "--partitions", "2", "-c", "retention.ms=5", "--json").stdout
    )
    run(
        "topics",
        "alter",
        "t",
        "--partitions",
        "3",
        "--config",
        "retention.bytes=7",
        "--remove",
        "retention.ms",
    )
    described = json.loads(run("topics", "describe", "t", "--json").stdout)
    listed = run("topics", "list").stdout
    shown = run("topics", "describe", "t").stdout
    run("topics", "delete", "t", "--yes")
    left = [topic["name"] for topic in json.loads(run("topics", "list", "--json").stdout)]

    assert created["config"] == {"retention.ms": "5"}
    assert (described["partitions"], described["config"]) == (3, {"retention.bytes": "7"})
    assert "retention.bytes=7" in listed
    assert "high watermark" in shown
    assert "t" not in left


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("topics", "describe", "none"), "tidelog topics list"),
        (("topics", "create", "bad name"), "illegal"),
        (("topics", "create", "t", "-c", "retention.ms"), "NAME=VALUE"),
        (("topics", "create", "t", "-c", "cleanup.policy=squash"), "compact"),
        (("topics", "alter", "t"), "Nothing to alter"),
        (("topics", "list", "--http-url", "localhost:8080"), "http://"),
        (("consume", "none"), "tidelog topics create"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    for name, value in stack.addresses.as_environment().items():
        monkeypatch.setenv(name, value)

    result = CliRunner().invoke(app, [*arguments])

    assert isinstance(result.exception, UserError)
    assert told in str(result.exception)


def test_the_doctor_and_the_migration_find_nothing_to_do(run: Run) -> None:
    run("topics", "create", "checked")
    run("produce", "checked", stdin="a\nb\n")

    assert "Healthy (every byte verified)" in run("doctor", "--verify").stdout
    assert "up to date" in run("migrate").stdout


def test_the_peers_secret_is_renewed_by_a_command(run: Run) -> None:
    assert "Renewed" in run("peers", "renew-secret").stdout


def test_flights_sent_through_one_zone_are_found_in_the_other_unchanged(stack: Stack) -> None:
    with TopicsClient(stack.addresses.http_urls[0], timeout_s=30) as topics:
        topics.create("flights", 6, {"retention.ms": "-1"})
    gets_before = _metric(stack, "b", "tidelog_store_gets_total")

    produced = produce_flights(
        as_records(read_flights(5_000)),
        bootstrap=stack.agent_in("a").address.bootstrap, zone="a", topic="flights",
    )  # fmt: skip
    where: dict[str, Any] = {
        "bootstrap": stack.agent_in("b").address.bootstrap,
        "zone": "b",
        "topic": "flights",
    }
    found = consume_and_compare(produced, **where)

    assert produced.records == sum(map(len, produced.by_partition.values())) == 5_000
    assert found.holds
    assert found.records == 5_000
    assert _metric(stack, "a", "tidelog_puts_total") > 0
    assert _metric(stack, "b", "tidelog_store_gets_total") > gets_before

    partition = produced.by_partition[0]
    partition[0], partition[1] = partition[1], partition[0]
    del partition[2]
    partition[10_000_000] = b"never sent"
    wrong = consume_and_compare(produced, **where)

    assert (wrong.different, wrong.unexpected, wrong.missing, wrong.holds) == (2, 1, 1, False)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_compacted_records_answer_sql(run: Run) -> None:
    run("topics", "create", "sold", "--partitions", "2")
    run(
        "produce",
        "sold",
        "--key-separator",
        "=",
        stdin="".join(f"k{number}=v{number}\n" for number in range(300)),
    )

    compacted = run("compact", "sold").stdout
    answer = run(
        "sql", "SELECT count(*) AS records, min(key) AS first FROM topics.sold", "--format", "json"
    ).stdout

    assert "300 records" in compacted
    assert json.loads(answer) == {"records": 300, "first": "k0"}


def _metric(stack: Stack, zone: str, name: str) -> float:
    text = httpx.get(f"{stack.agent_in(zone).address.http_url}/metrics", timeout=60).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
    )


def test_recover_says_who_owns_the_bucket_and_changes_nothing_unless_told_to(run: Run) -> None:
    said = " ".join(run("recover").stdout.split())

    assert "epoch 1" in said
    assert "its ownership was confirmed" in said
    assert "Nothing was changed" in said
