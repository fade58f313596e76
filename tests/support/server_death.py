"""How long clients stall when the server that coordinates their groups dies or freezes.

Each round kills (SIGKILL) or freezes (SIGSTOP) that server, waits until the clients of `stalls.py` continue,
restarts it, and begins again when all is steady.
"""

import asyncio
import contextlib
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import confluent_kafka.admin
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.static.primitive import i8

from tests.support.kafka_wire import Connection
from tests.support.stalls import CLASSIC, CONSUMER, ROLES, Clients, ClientSettings
from tidelog.devstack.stack import Stack

LONGEST_S = 90.0
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
_PARTITIONS = 6
_STEADY_PAUSE_S = 0.6
_STEADY_FOR_S = 11.0
"""librdkafka forgets after 10 s (reconnect.backoff.max.ms) that it could not connect. If a server dies twice
within that time, librdkafka is slow to leave it.
"""
_RECOVERED_FOR_S = 4.0
_OFFSETS_PARTITIONS = 50
"""Kafka's default: groups of one partition of __consumer_offsets have one coordinator."""
_FROZEN_CLIENT = {"socket.timeout.ms": 5_000, "request.timeout.ms": 5_000}


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


def measure(cluster: Cluster, how: str, rounds: int, say: Callable[[str], None]) -> Result:
    """Each role's longest stall in each round, and what went wrong."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topic = f"stalls-{uuid4().hex[:8]}"
    new_topic = confluent_kafka.admin.NewTopic(topic, _PARTITIONS, cluster.replication)
    admin.create_topics([new_topic])[topic].result(60)
    settings = ClientSettings(
        bootstrap=cluster.bootstrap,
        topic=topic,
        partitions=_PARTITIONS,
        groups=_groups_of_one_coordinator(cluster.servers),
        client=_FROZEN_CLIENT if how == "SIGSTOP" else {},
    )
    stalls: dict[str, list[float]] = {role: [] for role in ROLES}
    with Clients(settings) as clients:
        for number in range(rounds):
            _wait_until_steady(clients)
            victim = _coordinator(cluster.servers, settings.groups[CLASSIC])
            clients.begin()
            began_s, errors_before = time.monotonic(), len(clients.errors)
            cluster.harm(victim, SIGNALS[how])
            time.sleep(0.2)
            recovered = clients.wait_until_steady(_STEADY_PAUSE_S, _RECOVERED_FOR_S, LONGEST_S)
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
    if not clients.wait_until_steady(_STEADY_PAUSE_S, _STEADY_FOR_S, LONGEST_S):
        raise TimeoutError(f"the clients are not steady: {clients.stalls_s()}; {clients.errors[-5:]}")


def _groups_of_one_coordinator(servers: Sequence[str]) -> dict[str, str]:
    """A group of each protocol, with the same coordinator now, and in Kafka always."""
    first = f"group-{uuid4().hex[:8]}"
    coordinator = _coordinator(servers, first)
    while True:
        second = f"group-{uuid4().hex[:8]}"
        if (
            _offsets_partition(first) == _offsets_partition(second)
            and _coordinator(servers, second) == coordinator
        ):
            return {CLASSIC: first, CONSUMER: second}


def _offsets_partition(group_id: str) -> int:
    """Java's String.hashCode, as Kafka takes it."""
    code = 0
    for character in group_id:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % _OFFSETS_PARTITIONS


def _coordinator(servers: Sequence[str], group_id: str) -> str:
    """The address of the server that coordinates a group."""
    until_s = time.monotonic() + LONGEST_S
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


def p50(figures: Sequence[float]) -> float:
    return statistics.median(figures)


def p99(figures: Sequence[float]) -> float:
    return sorted(figures)[min(len(figures) - 1, int(len(figures) * 0.99))]
