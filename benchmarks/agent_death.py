"""`python -m benchmarks.agent_death`: how long clients stand still when one of three servers dies or freezes.

The same clients (`stalls.py`) use three agents of Tidelog and three brokers of Apache Kafka with their defaults, and a
controller apart that is never harmed. Each round kills (SIGKILL) or freezes (SIGSTOP) the server that coordinates both
groups and takes its share of the partitions. It then comes back, and the next round begins when all is steady.

Client settings are librdkafka's defaults, but for `enable.idempotence`, synchronous commits and, after SIGSTOP,
`socket.timeout.ms` and `request.timeout.ms` (see `_FROZEN_CLIENT`): clients of a frozen server that hold a request wait
for their own time limit, whatever the other servers know.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import confluent_kafka.admin
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.static.primitive import i8
from rich.console import Console
from rich.table import Table

from benchmarks.apache_kafka import kafka_cluster
from benchmarks.kafka_wire import Connection
from benchmarks.stalls import CLASSIC, CONSUMER, ROLES, Clients, ClientSettings
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

PARTITIONS = 6
SERVERS = 3
_STEADY_PAUSE_S = 0.6
_STEADY_FOR_S = 11.0
"""librdkafka forgets after 10 s (reconnect.backoff.max.ms) that it could not connect. A server that dies twice within
that time is one that it is slow to give up."""
_RECOVERED_FOR_S = 4.0
_LONGEST_S = 90.0
_OFFSETS_PARTITIONS = 50
"""Kafka's default: groups of one partition of __consumer_offsets have one coordinator."""
_FROZEN_CLIENT = {"socket.timeout.ms": 5_000, "request.timeout.ms": 5_000}
_SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Servers that can be harmed: `harm` and `mend` take a server's bootstrap address."""

    name: str
    servers: Sequence[str]
    replication: int
    harm: Callable[[str, signal.Signals], None]
    mend: Callable[[str], None]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    cluster: str
    how: str
    stalls_s: Mapping[str, Sequence[float]]
    faults: Sequence[str]
    rebalances: Mapping[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_death", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of each kind (default: 30)")
    parser.add_argument("--only", choices=("kafka", "tidelog"), help="one of the two alone")
    parser.add_argument("--how", choices=tuple(_SIGNALS), help="one way to die alone")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    arguments = parser.parse_args()
    console = Console()
    results = []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        for name, start in (("tidelog", tidelog_cluster), ("kafka", _kafka_cluster)):
            if arguments.only not in (None, name):
                continue
            for how in _SIGNALS:
                if arguments.how in (None, how):
                    with start(Path(directory) / f"{name}-{how}") as cluster:
                        results.append(measure(cluster, how, arguments.rounds, console.log))
    console.print(table(results))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([_plain(result) for result in results], indent=1))
    sys.exit(1 if any(result.faults for result in results) else 0)


@contextlib.contextmanager
def tidelog_cluster(directory: Path) -> Iterator[Cluster]:
    """Three agents of one zone."""
    with Stack(
        StackSettings(environment=Environment.of_process(), data_dir=directory, agents=SERVERS, zones=("a",))
    ) as stack:
        yield of_stack(stack)


def of_stack(stack: Stack) -> Cluster:
    numbers = {agent.address.bootstrap: number for number, agent in enumerate(stack.agents)}

    def harm(server: str, how: signal.Signals) -> None:
        stack.agents[numbers[server]].signal(how)

    def mend(server: str) -> None:
        agent = stack.agents[numbers[server]]
        agent.signal(signal.SIGCONT)
        time.sleep(0.1)
        stack.restart(numbers[server])

    return Cluster(name="Tidelog", servers=tuple(numbers), replication=1, harm=harm, mend=mend)


@contextlib.contextmanager
def _kafka_cluster(directory: Path) -> Iterator[Cluster]:
    with kafka_cluster(directory, SERVERS) as brokers:
        by_address = {broker.bootstrap: broker for broker in brokers}

        def mend(server: str) -> None:
            by_address[server].mend()
            _prefer_first_replicas(",".join(by_address))

        yield Cluster(
            name="Apache Kafka 4.1",
            servers=tuple(by_address),
            replication=SERVERS,
            harm=lambda server, how: by_address[server].signal(how),
            mend=mend,
        )


def measure(cluster: Cluster, how: str, rounds: int, say: Callable[[str], None]) -> Result:
    """Each role's longest stall in each round, and what went wrong."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topic = f"stalls-{uuid4().hex[:8]}"
    new_topic = confluent_kafka.admin.NewTopic(topic, PARTITIONS, cluster.replication)
    admin.create_topics([new_topic])[topic].result(60)
    settings = ClientSettings(
        bootstrap=cluster.bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        groups=groups_of_one_coordinator(cluster.servers),
        client=_FROZEN_CLIENT if how == "SIGSTOP" else {},
    )
    stalls: dict[str, list[float]] = {role: [] for role in ROLES}
    with Clients(settings) as clients:
        for number in range(rounds):
            _wait_until_steady(clients)
            victim = _coordinator(cluster.servers, settings.groups[CLASSIC])
            clients.begin()
            began_s, errors_before = time.monotonic(), len(clients.errors)
            cluster.harm(victim, _SIGNALS[how])
            time.sleep(0.2)
            recovered = clients.wait_until_steady(_STEADY_PAUSE_S, _RECOVERED_FOR_S, _LONGEST_S)
            found = clients.stalls_s()
            for role, stall_s in found.items():
                stalls[role].append(stall_s)
            said = ", ".join(f"{role} {stall_s:.2f} s" for role, stall_s in found.items())
            say(f"{cluster.name}, {how} {number + 1}: {said}{'' if recovered else ' (did not recover)'}")
            for error in clients.errors[errors_before:][:12]:
                at_s, _, text = error.partition(" ")
                say(f"    {float(at_s) - began_s:6.2f} s {text}")
            cluster.mend(victim)
        rebalances = dict(clients.assignments)
        faults = clients.end(60.0)
    for fault in faults[:10]:
        say(f"FAULT {fault}")
    return Result(cluster=cluster.name, how=how, stalls_s=stalls, faults=faults, rebalances=rebalances)


def _wait_until_steady(clients: Clients) -> None:
    if not clients.wait_until_steady(_STEADY_PAUSE_S, _STEADY_FOR_S, _LONGEST_S):
        raise TimeoutError(f"the clients are not steady: {clients.stalls_s()}; {clients.errors[-5:]}")


def groups_of_one_coordinator(servers: Sequence[str]) -> dict[str, str]:
    """A group of each protocol, with the same coordinator now, and in Kafka always."""
    first = f"group-{uuid4().hex[:8]}"
    coordinator = _coordinator(servers, first)
    while True:
        second = f"group-{uuid4().hex[:8]}"
        if _offsets_partition(first) == _offsets_partition(second) and _coordinator(servers, second) == coordinator:
            return {CLASSIC: first, CONSUMER: second}


def _offsets_partition(group_id: str) -> int:
    """Java's String.hashCode, as Kafka takes it."""
    code = 0
    for character in group_id:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % _OFFSETS_PARTITIONS


def _coordinator(servers: Sequence[str], group_id: str) -> str:
    """The address of the server that coordinates a group."""
    until_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < until_s:
        for server in servers:
            with contextlib.suppress(OSError, TimeoutError):
                found = asyncio.run(_ask_for_coordinator(server, group_id))
                if found is not None:
                    return found
        time.sleep(0.2)
    raise TimeoutError(f"no coordinator of {group_id}")


async def _ask_for_coordinator(server: str, group_id: str) -> str | None:
    host, port = server.split(":")
    connection = await Connection.open(host, int(port))
    try:
        asked = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group_id,))
        (found,) = (await connection.ask(asked, timeout_s=5.0)).coordinators
    finally:
        connection.kill()
    return f"{found.host}:{found.port}" if found.error_code is ErrorCode.none else None


def _prefer_first_replicas(bootstrap: str) -> None:
    """Gives a broker that is back its partitions and groups again, which Kafka does by itself within five minutes."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    until_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < until_s:
        time.sleep(1.0)
        with contextlib.suppress(confluent_kafka.KafkaException):
            admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED).result(30)
            topics = admin.list_topics(timeout=10).topics.values()
            partitions = [partition for topic in topics for partition in topic.partitions.values()]
            if all(len(p.isrs) == len(p.replicas) and p.leader == p.replicas[0] for p in partitions):
                return
    raise TimeoutError("not all partitions have their first replica as leader")


def table(results: Sequence[Result]) -> Table:
    shown = Table(title="longest stall of clients as one of three servers dies, s", title_justify="left")
    for column in ("", "", "client", "rounds", "p50", "p99", "longest", "assignments"):
        shown.add_column(column, justify="left" if column in ("", "client") else "right")
    for result in results:
        for role, stalls_s in result.stalls_s.items():
            figures = (p50(stalls_s), p99(stalls_s), max(stalls_s))
            times = str(result.rebalances.get(role, ""))
            shown.add_row(result.cluster, result.how, role, str(len(stalls_s)), *(f"{f:.2f}" for f in figures), times)
    return shown


def p50(figures: Sequence[float]) -> float:
    return statistics.median(figures)


def p99(figures: Sequence[float]) -> float:
    return sorted(figures)[min(len(figures) - 1, int(len(figures) * 0.99))]


def _plain(result: Result) -> dict[str, Any]:
    return {
        "cluster": result.cluster,
        "how": result.how,
        "stalls_s": {role: list(stalls) for role, stalls in result.stalls_s.items()},
        "faults": list(result.faults),
        "assignments": dict(result.rebalances),
    }


if __name__ == "__main__":
    main()
