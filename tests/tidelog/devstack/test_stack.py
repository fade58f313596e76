"""The development stack: survives its agents, its own restart and its own death."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.support.stack import HERE
from tidelog.agents_client import TopicsClient
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.devstack.stack_file import locked
from tidelog.errors import UserError
from tidelog.kafka_client import client_config

DEADLINE_S = 120.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, f"waited {DEADLINE_S:.0f} s for {what}"
        time.sleep(0.05)


def processes_of(data_dir: Path) -> list[psutil.Process]:
    """Whatever runs for a stack has its directory in its command line, environment or working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            said = " ".join([*process.cmdline(), *process.environ().values()])
            if (
                str(data_dir) in said
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def produce(stack: Stack, zone: str, topic: str, count: int) -> None:
    failures: list[str] = []
    producer = Producer(client_config(stack.agent_in(zone).address.bootstrap, zone))
    for number in range(count):
        producer.produce(
            topic, str(number), on_delivery=lambda error, _: failures.append(str(error)) if error else None
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failures == []


def records_in(stack: Stack, topic: str) -> int:
    with TopicsClient(stack.addresses.http_urls[-1], timeout_s=30) as topics:
        return sum(partition["high_watermark"] for partition in topics.describe(topic)["offsets"])


def test_data_survives_a_killed_agent_and_a_restart_of_everything(stack_directory: Path) -> None:
    settings = StackSettings(environment=HERE, data_dir=stack_directory / "stack", agents=1, zones=("a",))
    with Stack(settings) as first:
        with TopicsClient(first.addresses.http_urls[0], timeout_s=30) as topics:
            topics.create("kept", 2, {})
        produce(first, "a", "kept", 100)
        before = first.agents[0].pid

        first.kill(0)
        ended = (first.agents[0].pid, first.agents[0].exit_status)
        first.restart(0)
        produce(first, "a", "kept", 400)
        after = first.agents[0].pid

    # Postgres says that it has ended a moment before it has.
    wait_until(lambda: processes_of(first.data_dir) == [], "the end of what the stack had started")
    with Stack(settings) as second:
        kept = records_in(second, "kept")

    assert ended == (None, -signal.SIGKILL)
    assert after not in (None, before)
    assert kept == 500


def test_a_first_consumer_waits_for_no_others(stack_directory: Path) -> None:
    """As with the settings of Kafka's quickstart."""
    settings = StackSettings(
        environment=HERE, data_dir=stack_directory / "stack", agents=1, zones=("a",), store="local"
    )
    with Stack(settings) as stack:
        admin = AdminClient({"bootstrap.servers": stack.addresses.bootstrap})
        node_id = next(iter(admin.list_topics(timeout=30).brokers))
        broker = ConfigResource(ConfigResource.Type.BROKER, str(node_id))

        configs = admin.describe_configs([broker])[broker].result(30)

    assert configs["group.initial.rebalance.delay.ms"].value == "0"


def test_a_start_that_fails_leaves_nothing_running(stack_directory: Path) -> None:
    settings = StackSettings(
        environment=HERE,
        data_dir=stack_directory / "stack",
        agents=1,
        agent_environment={"TIDELOG_LINGER_MS": "no number"},
    )

    with pytest.raises(UserError, match="TIDELOG_LINGER_MS"):
        Stack(settings).start()

    wait_until(lambda: processes_of(settings.data_dir) == [], "the end of what the stack had started")


def test_a_second_stack_is_told_of_the_first_not_of_its_ports(stack_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, locked(stack_directory):
        again = StackSettings(environment=HERE, data_dir=stack_directory, kafka_port=first.getsockname()[1])

        with pytest.raises(UserError, match=f"Another stack \\(process {os.getpid()}\\)"):
            Stack(again).start()


def test_a_port_that_is_taken_is_named_with_its_option(stack_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]

        with pytest.raises(UserError, match=rf"{taken}.*--kafka-port"):
            Stack(
                StackSettings(environment=HERE, data_dir=stack_directory / "stack", kafka_port=taken)
            ).start()


@contextmanager
def dev(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`tidelog dev` in a process of its own, ready; and the file of what it says."""
    said = directory / "said"
    command = [sys.executable, "-m", "tidelog", "dev", "--data-dir", str(directory / "dev"), *options]
    with said.open("w") as output:
        process = subprocess.Popen(
            [*command, "--kafka-port", "0", "--http-port", "0"],
            stdout=output,
            stderr=output,
            start_new_session=True,
            text=True,
        )
    try:
        wait_until(lambda: "Ctrl-C" in said.read_text() or process.poll() is not None, "tidelog dev")
        assert process.poll() is None, said.read_text()
        yield process, said
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)


def agents_of(supervisor: int) -> set[int]:
    found = set()
    for child in psutil.Process(supervisor).children():
        with suppress(psutil.NoSuchProcess):  # which a dead child not yet collected is, too
            if child.cmdline()[-1:] == ["agent"]:
                found.add(child.pid)
    return found


def test_dev_restarts_an_agent_that_dies_and_ctrl_c_ends_everything(stack_directory: Path) -> None:
    with dev(stack_directory, "--agents", "2") as (process, said):
        before = agents_of(process.pid)
        killed = min(before)

        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(agents_of(process.pid) - {killed}) == 2, "the agent's return")
        running = len(processes_of(stack_directory / "dev"))
        process.send_signal(signal.SIGINT)
        status = process.wait(DEADLINE_S)

    assert len(before) == 2
    assert re.search(r"agent-\d ended with status -9; restarting", said.read_text())
    assert running > 4  # itself, two agents, Postgres, the S3 endpoint
    assert status == 0
    assert "The data stays" in said.read_text()
    wait_until(lambda: processes_of(stack_directory / "dev") == [], "the end of what dev had started")


def test_killing_dev_leaves_no_orphans(stack_directory: Path) -> None:
    with dev(stack_directory, "--agents", "1", "--store", "local") as (process, _):
        process.kill()
        process.wait(DEADLINE_S)

        wait_until(lambda: processes_of(stack_directory / "dev") == [], "the end of what dev had started")
