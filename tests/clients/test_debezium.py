"""Debezium: the changes of a Postgres table, through Kafka Connect with exactly-once support (KIP-618).

Rows change at random while an agent and a worker are killed. Consumers of committed data must find each
change once, and in the order of its row.
"""

import hashlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests import support
from tests.clients.adapters import DEADLINE_S
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix, ToolchainAbsent
from tests.support.child import free_port
from tests.support.directories import new_directory
from tests.support.kafka_connect import Worker, connect_jars, workers
from tests.support.maven import retrieve
from tests.support.seeds import seeds
from tests.support.stack import HERE
from tests.support.waiting import wait_until
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

_NAME = "debezium"
_MODULES = Path(support.__file__).with_name("debezium.xml")
_FOLDER = Path(__file__).parents[2] / ".cache" / "debezium"
_PATIENCE_S = 240.0
_TOPIC = "shop.public.orders"
_PARTITIONS = 3
_ROWS = 50
_MORE_CHANGES = 200
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_WORKER = {
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "exactly.once.source.support": "enabled",
    "key.converter": _JSON,
    "value.converter": _JSON,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    # A worker that leaves is not waited for. The default is five minutes.
    "scheduled.rebalance.max.delay.ms": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A Postgres that tells its changes, on its port of 127.0.0.1."""

    port: int

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", autocommit=True
        )


@pytest.fixture
def database() -> Iterator[Database]:
    port = free_port()
    with new_directory("debezium") as directory:
        server = EmbeddedPostgres(directory / "data", EmbeddedPostgresSettings(durable=False))
        try:
            with psycopg.connect(server.start(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET wal_level = logical")
                connection.execute("ALTER SYSTEM SET listen_addresses = '127.0.0.1'")
                connection.execute(f"ALTER SYSTEM SET port = {port}".encode())
            server.stop()
            server.start()
            yield Database(port=port)
        finally:
            server.stop()


@pytest.fixture
def stack(module_directory: Path) -> Iterator[Stack]:
    """Two agents that clean Connect's topics all the time."""
    often = {"TIDELOG_CLEAN_INTERVAL_S": "0.5", "TIDELOG_CLEAN_LEASE_S": "10"}
    settings = StackSettings(environment=HERE, data_dir=module_directory / "stack", agent_environment=often)
    with Stack(settings) as running:
        yield running


@pytest.fixture
def both_workers(stack: Stack, module_directory: Path, matrix: Matrix) -> Iterator[Sequence[Worker]]:
    """Raises `ToolchainAbsent` without Java."""
    if shutil.which("java") is None:
        raise ToolchainAbsent(_NAME, "java")
    connect = connect_jars()
    jars = retrieve(_MODULES, _FOLDER / hashlib.sha256(_MODULES.read_bytes()).hexdigest()[:16])
    (connector,) = jars.glob("debezium-connector-postgres-*.jar")
    matrix.note_version(_NAME, connector.stem.removeprefix("debezium-connector-postgres-"))
    given = {"bootstrap.servers": stack.addresses.bootstrap, **_WORKER}
    both = replace(connect, classpath=f"{connect.classpath}:{jars}/*")
    with workers(both, module_directory / "workers", 2, given) as started:
        yield started


class Changer:
    """Changes a random row in each transaction until it is left, and counts changes by Debezium's kinds."""

    def __init__(self, database: Database, seed: int) -> None:
        self._connection = database.connect()
        self._chance = Random(seed)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._change)
        self.made: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._connection.close()

    def _change(self) -> None:
        number = 0
        while not self._done.wait(0.01):
            number += 1
            row = self._chance.randrange(2 * _ROWS)
            if self._chance.random() < 0.2:
                done = self._connection.execute("DELETE FROM orders WHERE id = %s", (row,))
                self.made["d"] += done.rowcount
                continue
            done = self._connection.execute("UPDATE orders SET what = %s WHERE id = %s", (number, row))
            self.made["u"] += done.rowcount
            if done.rowcount == 0:
                self._connection.execute("INSERT INTO orders VALUES (%s, %s)", (row, number))
                self.made["c"] += 1


class Changes:
    """What a consumer of committed data makes of the topic: how many changes of each kind, and the table."""

    def __init__(self, servers: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
        self._consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed"})
        places = [confluent_kafka.TopicPartition(_TOPIC, number, 0) for number in range(_PARTITIONS)]
        self._consumer.assign(places)
        self.seen: Counter[str] = Counter()
        self.table: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def until(self, count: int) -> None:
        """Reads on until there are as many changes."""
        until = time.monotonic() + _PATIENCE_S
        while self.seen.total() < count:
            assert time.monotonic() < until, f"{self.seen} came, and not {count}"
            for message in self._consumer.consume(500, timeout=1.0):
                if message.error() is None:
                    self._take(message)

    def _take(self, message: confluent_kafka.Message) -> None:
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:  # the tombstone behind each deletion
            return
        change, row = json.loads(value), json.loads(key)["id"]
        self.seen[change["op"]] += 1
        if change["after"] is None:
            del self.table[row]
        else:
            self.table[row] = change["after"]["what"]


@tried(_NAME, "changes of Postgres, exactly once", "an agent dies", "a worker dies")
def test_each_change_of_a_row_is_read_once_although_an_agent_and_a_worker_die(
    database: Database, stack: Stack, both_workers: Sequence[Worker]
) -> None:
    [seed] = seeds(1)
    servers = stack.addresses.bootstrap
    with database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, what int)")
        connection.execute("INSERT INTO orders SELECT i, 0 FROM generate_series(0, %s) AS i", (_ROWS - 1,))
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(DEADLINE_S)
    both_workers[0].put_connector("orders", _connector(database))

    with Changes(servers) as changes:
        changes.until(_ROWS)
        with Changer(database, seed) as changer:
            changes.until(_ROWS + changer.made.total() + _MORE_CHANGES)
            victim = Random(seed).randrange(2)
            stack.kill(victim)
            changes.until(_ROWS + changer.made.total() + _MORE_CHANGES)
            stack.restart(victim)
            _worker_of_the_task(both_workers).kill()
            changes.until(_ROWS + changer.made.total() + _MORE_CHANGES)
        changes.until(_ROWS + changer.made.total())

    assert changes.seen == changer.made + Counter(r=_ROWS)
    with database.connect() as connection:
        assert changes.table == dict(connection.execute("SELECT id, what FROM orders").fetchall())
    print(f"{changes.seen}")


def _connector(database: Database) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": "postgres",
        "database.password": "unused",
        "database.dbname": "postgres",
        "table.include.list": "public.orders",
        "topic.prefix": "shop",
        "exactly.once.support": "required",
    }


def _worker_of_the_task(both: Sequence[Worker]) -> Worker:
    found: list[Worker] = []

    def is_known() -> bool:
        tasks = both[0].status("orders").get("tasks", [])
        running = [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]
        found[:] = [worker for worker in both if worker.name in running]
        return len(found) == 1

    wait_until(is_known, _PATIENCE_S)
    return found[0]
