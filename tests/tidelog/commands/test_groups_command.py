"""`tidelog groups` and `tidelog consume --group` against a running stack, as a user runs them."""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode
from kio.schema.streams_group_heartbeat.v0.request import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta
from typer.testing import CliRunner, Result

from tests.support.kafka_wire import coordinator_of
from tests.support.waiting import wait_until
from tidelog.cli import app
from tidelog.devstack.stack import Stack
from tidelog.errors import UserError

Run = Callable[..., Result]
PATIENCE_S = 60.0
LOOKS = 20
"""At a group, each by a client of its own: longer than the shortest idle time."""
COMMAND = (sys.executable, "-m", "tidelog")
_numbers = itertools.count(1)


@pytest.fixture
def run(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("groups", "list")` on the stack's cluster; fails the test unless the command succeeds."""
    for name, value in stack.addresses.as_environment().items():
        monkeypatch.setenv(name, value)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(
            app, [*arguments], input=stdin, catch_exceptions=False, env={"COLUMNS": "200"}
        )
        assert result.exit_code == 0, result.output
        return result

    return invoke


def described(run: Run, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("groups", "describe", group, "--json").stdout)
    return found


def committed(run: Run, group: str) -> dict[tuple[str, int], int]:
    return {
        (entry["topic"], entry["partition"]): entry["committed"]
        for entry in described(run, group)["partitions"]
    }


def reset(run: Run, group: str, *options: str) -> list[tuple[int, int | None, int]]:
    plan = json.loads(run("groups", "reset-offsets", group, *options, "--json").stdout)
    return [(entry["partition"], entry["from"], entry["to"]) for entry in plan["offsets"]]


@pytest.fixture
def topic(run: Run) -> str:
    """A topic of one partition with ten records, of this test alone."""
    name = f"topic-{next(_numbers)}"
    run("topics", "create", name, "--partitions", "1")
    run("produce", name, stdin="".join(f"r{number}\n" for number in range(10)))
    return name


def a_member(stack: Stack, group: str, topic: str, protocol: str, instance: str | None = None) -> Consumer:
    """A consumer that has its partition and has read the first record."""
    static = {} if instance is None else {"group.instance.id": instance}
    consumer = Consumer(
        {
            "bootstrap.servers": stack.addresses.bootstrap, "group.id": group, "group.protocol": protocol,
            "client.id": f"member-of-{group}", "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "log_level": 0, **static,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    until = time.monotonic() + PATIENCE_S
    while (message := consumer.poll(0.5)) is None or message.error() is not None:
        assert time.monotonic() < until, "the consumer was given nothing"
    consumer.commit(message=message, asynchronous=False)
    return consumer


@pytest.fixture(params=["classic", "consumer"])
def member(stack: Stack, topic: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A group with one member, and its protocol."""
    group = f"in-use-{next(_numbers)}"
    consumer = a_member(stack, group, topic, request.param)
    yield group, request.param
    consumer.close()


STREAMS_TOPOLOGY = Topology(
    epoch=i32(3),
    subtopologies=(
        Subtopology(
            subtopology_id="0",
            source_topics=(),
            state_changelog_topics=(),
            repartition_source_topics=(),
            copartition_groups=(),
        ),
    ),
)


def a_streams_member(stack: Stack, group: str, topic: str) -> str:
    """A member that has its tasks, as Kafka Streams would join. Returns its id."""
    [part] = STREAMS_TOPOLOGY.subtopologies
    topology = replace(STREAMS_TOPOLOGY, subtopologies=(replace(part, source_topics=(TopicName(topic),)),))
    member_id = str(uuid4())
    joins = StreamsGroupHeartbeatRequest(
        group_id=GroupId(group),
        member_id=member_id,
        member_epoch=i32(0),
        endpoint_information_epoch=i32(-1),
        rebalance_timeout=i32Timedelta.parse(timedelta(seconds=60)),
        topology=topology,
        active_tasks=(),
        standby_tasks=(),
        warmup_tasks=(),
        process_id="process",
        client_tags=(),
        task_offsets=(),
        task_end_offsets=(),
    )

    async def join() -> None:
        host, port = stack.addresses.bootstrap.split(",")[0].rsplit(":", 1)
        connection = await coordinator_of(host, int(port), group)
        request, tasks = joins, None
        while not tasks:
            answer = await connection.ask(request)
            assert answer.error_code is ErrorCode.none, answer
            tasks = answer.active_tasks
            request = replace(
                joins, member_epoch=answer.member_epoch, topology=None, active_tasks=tasks or ()
            )
            await asyncio.sleep(0.1)
        await connection.ask(replace(request, active_tasks=tasks))
        connection.kill()

    asyncio.run(join())
    return member_id


def test_a_streams_group_is_listed_and_described_with_its_topology_and_tasks(
    run: Run, stack: Stack, topic: str
) -> None:
    group = f"streams-{next(_numbers)}"
    member_id = a_streams_member(stack, group, topic)

    listed = json.loads(run("groups", "list", "--json").stdout)
    [row] = [row for row in listed if row["group"] == group]
    assert row["type"] == "streams"
    found = described(run, group)
    assert (found["type"], found["streams"]["topology_epoch"]) == ("streams", 3)
    [member] = found["streams"]["members"]
    assert (member["member_id"], member["active"]) == (member_id, [["0", 0]])
    assert (member["standby"], member["warmup"], member["is_reconciling"]) == ([], [], False)
    [part] = found["streams"]["subtopologies"]
    assert (part["subtopology_id"], part["sources"]) == ("0", [topic])
    assert [entry["member_id"] for entry in found["partitions"]] == [member_id]

    shown = run("groups", "describe", group).stdout
    assert "topology epoch 3" in shown
    assert "0_0" in shown

    with pytest.raises(UserError, match="is in use"):
        run("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")


def test_a_group_reads_on_where_it_stopped(run: Run, topic: str) -> None:
    first = run("consume", topic, "--group", "readers", "--from-beginning", "--max-messages", "4").stdout
    second = run("consume", topic, "--group", "readers", "--max-messages", "6").stdout
    nothing = run("consume", topic, "--group", "readers", "--from-beginning", "--idle-s", "2").stdout

    assert first.split() == ["r0", "r1", "r2", "r3"]
    assert second.split() == ["r4", "r5", "r6", "r7", "r8", "r9"]
    assert nothing == ""
    assert committed(run, "readers") == {(topic, 0): 10}


def test_a_new_protocol_group_reads_on_where_it_stopped(run: Run, topic: str) -> None:
    options = ("--group", "modern", "--group-protocol", "consumer", "--from-beginning")
    first = run("consume", topic, *options, "--max-messages", "3").stdout
    second = run("consume", topic, *options, "--max-messages", "7").stdout

    assert (first + second).split() == [f"r{number}" for number in range(10)]
    assert described(run, "modern")["type"] == "consumer"


def test_a_group_is_described_with_members_and_with_lag_in_records_and_seconds(
    run: Run, topic: str, member: tuple[str, str]
) -> None:
    group, protocol = member
    found = described(run, group)
    shown = run("groups", "describe", group).stdout
    listed = {row["group"]: row for row in json.loads(run("groups", "list", "--json").stdout)}

    assert (found["state"], found["type"]) == ("Stable", protocol)
    [entry] = found["partitions"]
    assert (entry["committed"], entry["end"], entry["lag"]) == (1, 10, 9)
    assert 0 < entry["lag_s"] < 600
    [one] = found["members"]
    assert entry["member_id"] == one["member_id"]
    assert (one["client_id"], one["host"]) == (f"member-of-{group}", "127.0.0.1")
    assert one["partitions"] == [{"topic": topic, "partition": 0}]
    assert "lag: 9 records" in shown
    assert listed[group] == {"group": group, "type": found["type"], "state": "Stable"}
    assert group in run("groups", "list").stdout


def test_a_group_in_use_is_neither_reset_nor_deleted_and_its_members_are_named(
    run: Run, topic: str, member: tuple[str, str]
) -> None:
    group, _ = member
    for arguments in (
        ("reset-offsets", group, "--all-topics", "--to-earliest", "--execute"),
        ("reset-offsets", group, "--topic", topic, "--to-latest"),
        ("delete", group, "--yes"),
    ):
        result = CliRunner().invoke(app, ["groups", *arguments])

        assert isinstance(result.exception, UserError), result.output
        assert f"member-of-{group} (127.0.0.1)" in result.exception.message
        assert "Stop its consumers" in result.exception.fix
    assert committed(run, group) == {(topic, 0): 1}


def test_a_static_member_that_stopped_is_in_the_way_until_its_session_ends(
    run: Run, stack: Stack, topic: str
) -> None:
    a_member(stack, "static", topic, "consumer", instance="till-1").close()

    found = described(run, "static")
    listed = {row["group"]: row["state"] for row in json.loads(run("groups", "list", "--json").stdout)}
    result = CliRunner().invoke(app, ["groups", "delete", "static", "--yes"])

    assert [one["instance_id"] for one in found["members"]] == ["till-1"]
    assert found["state"] == listed["static"] == "Rebalancing"
    assert isinstance(result.exception, UserError), result.output
    assert "group.instance.id" in result.exception.fix


@pytest.mark.parametrize("command", [("list",), ("describe", "g"), ("delete", "g", "--yes")])
def test_a_cluster_that_does_not_answer_is_told(command: tuple[str, ...]) -> None:
    nobody = {"TIDELOG_BOOTSTRAP": "127.0.0.1:1", "TIDELOG_CLIENT_TIMEOUT_S": "1"}

    result = CliRunner().invoke(app, ["groups", *command], env=nobody)

    assert isinstance(result.exception, UserError), result.output
    assert "No agent answers" in result.exception.message


def test_a_reset_is_shown_first_and_then_done(run: Run, topic: str) -> None:
    run("consume", topic, "--group", "moved", "--from-beginning", "--max-messages", "10")

    planned = run("groups", "reset-offsets", "moved", "--topic", topic, "--to-earliest").stdout
    before = committed(run, "moved")
    done = run("groups", "reset-offsets", "moved", "--topic", topic, "--to-earliest", "--execute").stdout

    assert "Nothing was changed" in planned
    assert before == {(topic, 0): 10}
    assert "reads on from there" in done
    assert committed(run, "moved") == {(topic, 0): 0}
    assert run("consume", topic, "--group", "moved", "--max-messages", "1").stdout == "r0\n"


def test_a_reset_goes_by_offset_by_shift_by_time_and_by_duration(run: Run, topic: str) -> None:
    where = ("--topic", f"{topic}:0")
    assert reset(run, "timed", *where, "--to-offset", "7", "--execute") == [(0, None, 7)]
    assert reset(run, "timed", *where, "--shift-by", "-3", "--execute") == [(0, 7, 4)]
    assert reset(run, "timed", "--all-topics", "--shift-by", "100") == [(0, 4, 10)]
    assert reset(run, "timed", *where, "--to-datetime", "2020-01-01T00:00:00") == [(0, 4, 0)]
    assert reset(run, "timed", *where, "--to-datetime", "2999-01-01") == [(0, 4, 10)]
    assert reset(run, "timed", *where, "--by-duration", "1h") == [(0, 4, 0)]
    assert reset(run, "timed", *where, "--to-latest") == [(0, 4, 10)]
    assert committed(run, "timed") == {(topic, 0): 4}
    assert (
        "as far as the log goes"
        in run("groups", "reset-offsets", "timed", *where, "--to-offset", "99").stdout
    )


def test_groups_are_deleted_with_their_offsets(run: Run, topic: str) -> None:
    for name in ("gone-1", "gone-2", "stays"):
        reset(run, name, "--topic", topic, "--to-latest", "--execute")

    run("groups", "delete", "gone-1", "gone-2", "--yes")

    names = {row["group"] for row in json.loads(run("groups", "list", "--json").stdout)}
    assert names & {"gone-1", "gone-2", "stays"} == {"stays"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("describe", "no-such-group"), "tidelog groups list"),
        (("delete", "no-such-group", "--yes"), "tidelog groups list"),
        (("reset-offsets", "no-such-group", "--all-topics", "--to-latest"), "tidelog groups list"),
        (("reset-offsets", "g", "--topic", "no-such-topic", "--to-latest"), "tidelog topics list"),
        (("reset-offsets", "g", "--to-latest"), "--all-topics"),
        (("reset-offsets", "g", "--topic", "t", "--all-topics", "--to-latest"), "Which topics?"),
        (("reset-offsets", "g", "--topic", "t"), "--to-earliest"),
        (("reset-offsets", "g", "--topic", "t", "--to-latest", "--to-earliest"), "several"),
        (("reset-offsets", "g", "--topic", "t", "--to-datetime", "tomorrow"), "no date and time"),
        (
            ("reset-offsets", "g", "--topic", "t", "--by-duration", "A while"),
            "'A while' is no duration such as 1h30m",
        ),
        (("reset-offsets", "g", "--topic", "t:x", "--to-latest"), "no topic"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(run: Run, arguments: tuple[str, ...], told: str) -> None:
    del run  # its environment is what is wanted
    result = CliRunner().invoke(app, ["groups", *arguments])

    assert isinstance(result.exception, UserError), result.output
    assert told in str(result.exception)


def test_a_partition_that_a_topic_does_not_have_is_told(run: Run, topic: str) -> None:
    del run
    result = CliRunner().invoke(
        app, ["groups", "reset-offsets", "g", "--topic", f"{topic}:0,7", "--to-latest"]
    )

    assert isinstance(result.exception, UserError)
    assert "has no partition 7" in result.exception.message


def test_a_consumer_is_not_idle_before_the_group_has_assigned_it_partitions(
    run: Run, stack: Stack, topic: str
) -> None:
    group = f"late-{next(_numbers)}"
    holder = Consumer({"bootstrap.servers": stack.addresses.bootstrap, "group.id": group, "log_level": 0})
    # With a callback, the holder gives its partition up in its next poll: the rebalance waits for that.
    holder.subscribe([topic], on_revoke=lambda *_: None)
    wait_until(lambda: holder.poll(0.05) is None and holder.assignment())

    command = [*COMMAND, "consume", topic, "--group", group, "--from-beginning", "--idle-s", "0.1"]
    consuming = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    looks = itertools.count(1)
    wait_until(
        lambda: (
            consuming.poll() is not None
            or (len(described(run, group)["members"]) == 2 and next(looks) >= LOOKS)
        )
    )
    ended_early = consuming.poll() is not None
    holder.close()
    said, _ = consuming.communicate(timeout=PATIENCE_S)

    assert not ended_early, said
    assert consuming.returncode == 0, said


def test_deleting_what_does_not_exist_asks_no_question(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stack.addresses.as_environment().items():
        monkeypatch.setenv(name, value)

    for kind in ("topics", "groups"):
        result = CliRunner().invoke(app, [kind, "delete", "nobody-made-it"], input="y\n")

        assert isinstance(result.exception, UserError), result.output
        assert "nobody-made-it" in str(result.exception)
        assert "[y/N]" not in result.output
