"""An agent as a process that is stopped or killed right after a change: what its audit trail has of it."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.waiting import wait_until
from tidelog.devstack.ports import picked_ports

TOPIC = "__tidelog_audit"
TIMES = 3


class AgentProcess:
    def __init__(self, database_url: str, folder: Path, kafka: int, http: int) -> None:
        (folder / "store").mkdir()
        self._log_file = folder / "agent.log"
        self.kafka, self.http = kafka, http
        settings = {
            "DATABASE_URL": database_url,
            "STORE_URL": (folder / "store").as_uri(),
            "KAFKA_PORT": str(kafka),
            "HTTP_PORT": str(http),
            "AUDIT_TOPIC": "true",
            "LINGER_MS": "20",
        }
        self._environment = os.environ | {f"TIDELOG_{name}": value for name, value in settings.items()}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "agent"], env=self._environment, stderr=log
            )
        wait_until(self._is_ready, timeout_s=120)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def create(self, name: str) -> None:
        """Creates a topic. Returns once the agent has answered."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v1/topics",
            data=json.dumps({"name": name}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.status == 201

    def end(self, by: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(by)
        return self.process.wait(60)

    def created_in_log(self) -> set[str]:
        lines = [line for line in self._log_file.read_text().splitlines() if line.startswith("{")]
        return _created([json.loads(line) for line in lines])

    def created_in_topic(self) -> set[str]:
        consumer = Consumer(
            {"bootstrap.servers": f"127.0.0.1:{self.kafka}", "group.id": "r", "enable.auto.commit": False}
        )
        try:
            partition = TopicPartition(TOPIC, 0, 0)
            _, end = consumer.get_watermark_offsets(partition, timeout=60)
            consumer.assign([partition])
            found: list[dict[str, Any]] = []
            while len(found) < end:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                found.append(json.loads(message.value() or b""))
            return _created(found)
        finally:
            consumer.close()


def _created(events: list[dict[str, Any]]) -> set[str]:
    changes = [event for event in events if event.get("event") == "change"]
    return {one["name"] for event in changes for one in event["resources"]}


@pytest.fixture
def agent(database_url: str, tmp_path: Path) -> Iterator[AgentProcess]:
    with picked_ports(2) as (kafka, http):
        made = AgentProcess(database_url, tmp_path, kafka, http)
        try:
            yield made
        finally:
            if made.process is not None and made.process.poll() is None:
                made.end(signal.SIGTERM)


@pytest.mark.timeout(300)
def test_a_change_right_before_sigterm_is_in_the_topic(agent: AgentProcess) -> None:
    names = {f"before-the-end-{number}" for number in range(TIMES)}
    for name in sorted(names):
        agent.start()
        agent.create(name)
        assert agent.end(signal.SIGTERM) == 0
    agent.start()

    assert names <= agent.created_in_topic()


@pytest.mark.timeout(300)
def test_a_change_that_was_answered_before_sigkill_is_in_the_log(agent: AgentProcess) -> None:
    names = {f"before-the-kill-{number}" for number in range(TIMES)}
    for name in sorted(names):
        agent.start()
        agent.create(name)
        agent.end(signal.SIGKILL)
    agent.start()
    agent.create("after-the-kills")

    assert names <= agent.created_in_log()
    wait_until(lambda: "after-the-kills" in agent.created_in_topic(), timeout_s=60)
