"""`python -m benchmarks.groups`: compares consumer groups with Apache Kafka's, with the same members and the
same timeouts.

Two figures for each protocol:
- *A death*: groups of 4 members on 12 partitions. One member of each dies without leaving. Measures the time
  until the survivors own all 12, including the session timeout, which is the same for both systems.
- *A large group*: 500 members on 1,000 partitions start at once. Measures the time until every partition has
  one owner, and the CPU that servers spend on it and on ten seconds of heartbeats afterwards.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import confluent_kafka.admin
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.group_members import ClassicMember, ConsumerMember, Member, Membership
from benchmarks.systems.meters import cpu_s
from tests.support.apache_kafka import apache_kafka
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

SESSION_TIMEOUT_S = 6.0
HEARTBEAT_S = 1.0
GROUPS, MEMBERS, PARTITIONS = 20, 4, 12
LARGE_MEMBERS, LARGE_PARTITIONS = 500, 1_000
_STEADY_S = 10.0
_DEADLINE_S = 240.0
_KAFKA = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
_TIDELOG = {
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TIDELOG_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
    "TIDELOG_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "6000",
    "TIDELOG_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "1000",
}
_PROTOCOLS: dict[str, Callable[[Membership], Member]] = {"classic": ClassicMember, "consumer": ConsumerMember}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A running service. `pids`: its servers and its database."""

    name: str
    bootstrap: str
    pids: Sequence[int]

    def cpu_s(self) -> float:
        """Spent so far."""
        return sum(map(cpu_s, self.pids))


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeGroup:
    start_s: float
    start_cpu_s: float
    steady_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    target: str
    protocol: str
    deaths_s: Sequence[float]
    large: LargeGroup


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help=f"of {GROUPS} deaths each (default: 5)")
    parser.add_argument("--members", type=int, default=LARGE_MEMBERS, help="of the large group")
    parser.add_argument("--only", choices=("kafka", "tidelog"), help="only one of the two")
    arguments = parser.parse_args()
    console = Console()
    results = []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        for name, start in (("kafka", _kafka), ("tidelog", _tidelog)):
            if arguments.only in (None, name):
                with start(Path(directory) / name) as target:
                    for protocol in _PROTOCOLS:
                        console.log(f"{target.name}, {protocol} protocol")
                        results.append(
                            uvloop.run(_measure(target, protocol, arguments.rounds, arguments.members))
                        )
    console.print(_table(results, arguments.members))


@contextlib.contextmanager
def _kafka(directory: Path) -> Iterator[Target]:
    with apache_kafka(directory, _KAFKA) as broker:
        yield Target(name="Apache Kafka 4.1", bootstrap=broker.bootstrap, pids=[broker.pid])


@contextlib.contextmanager
def _tidelog(directory: Path) -> Iterator[Target]:
    with Stack(
        StackSettings(environment=Environment.of_process(), data_dir=directory, agent_environment=_TIDELOG)
    ) as stack:
        (pid_file,) = directory.rglob("postmaster.pid")
        agents = [agent.pid for agent in stack.agents if agent.pid is not None]
        postmaster = int(pid_file.read_text().split()[0])
        yield Target(name="Tidelog", bootstrap=stack.agents[0].address.bootstrap, pids=[*agents, postmaster])


async def _measure(target: Target, protocol: str, rounds: int, members: int) -> Result:
    deaths: list[float] = []
    topic, topic_id = await asyncio.to_thread(_new_topic, target.bootstrap, PARTITIONS)
    for _ in range(rounds):
        groups = [_group(target, protocol, topic, topic_id, MEMBERS, PARTITIONS) for _ in range(GROUPS)]
        deaths += await asyncio.gather(*(_time_of_death(group) for group in groups))
    return Result(
        target=target.name,
        protocol=protocol,
        deaths_s=deaths,
        large=await _large_group(target, protocol, members),
    )


class Group:
    """Members of one group, and which partitions each of them owns."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._changed = asyncio.Event()
        self.members: list[Member] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, member: Member) -> None:
        self.members.append(member)
        self._tasks.append(asyncio.create_task(member.run()))

    def note_change(self) -> None:
        self._changed.set()

    async def all_owned(self) -> None:
        """Waits until every partition has one owner. Raises TimeoutError, or the error of a member."""
        async with asyncio.timeout(_DEADLINE_S):
            while not self._is_shared_out():
                self._changed.clear()
                waiting = asyncio.create_task(self._changed.wait())
                await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                for task in self._tasks:
                    if task.done() and not task.cancelled():
                        task.result()
                self._tasks = [task for task in self._tasks if not task.done()]

    def kill_one(self) -> None:
        self.members.pop(random.randrange(len(self.members))).kill()

    def end(self) -> None:
        for member in self.members:
            member.kill()

    def _is_shared_out(self) -> bool:
        owned = [partition for member in self.members for partition in member.owned]
        return len(owned) == len(set(owned)) == self._partitions and all(
            member.owned for member in self.members
        )


def _group(target: Target, protocol: str, topic: str, topic_id: UUID, members: int, partitions: int) -> Group:
    group = Group(partitions)
    host, port = target.bootstrap.split(":")
    membership = Membership(
        host=host,
        port=int(port),
        group_id=f"group-{uuid4().hex[:12]}",
        topic=topic,
        topic_id=topic_id,
        partitions=partitions,
        session_timeout_s=SESSION_TIMEOUT_S,
        heartbeat_s=HEARTBEAT_S,
        changed=group.note_change,
    )
    for _ in range(members):
        group.start(_PROTOCOLS[protocol](membership))
    return group


async def _time_of_death(group: Group) -> float:
    await group.all_owned()
    await asyncio.sleep(random.uniform(1.0, 2.0) * HEARTBEAT_S)
    await group.all_owned()
    began_s = time.monotonic()
    group.kill_one()
    await group.all_owned()
    took_s = time.monotonic() - began_s
    group.end()
    return took_s


async def _large_group(target: Target, protocol: str, members: int) -> LargeGroup:
    topic, topic_id = await asyncio.to_thread(_new_topic, target.bootstrap, LARGE_PARTITIONS)
    spent_s, began_s = target.cpu_s(), time.monotonic()
    group = _group(target, protocol, topic, topic_id, members, LARGE_PARTITIONS)
    await group.all_owned()
    start_s, start_cpu_s = time.monotonic() - began_s, target.cpu_s() - spent_s
    await asyncio.sleep(2 * HEARTBEAT_S)
    await group.all_owned()
    spent_s = target.cpu_s()
    await asyncio.sleep(_STEADY_S)
    steady_cpu_s = target.cpu_s() - spent_s
    group.end()
    return LargeGroup(start_s=start_s, start_cpu_s=start_cpu_s, steady_cpu_s=steady_cpu_s)


def _new_topic(bootstrap: str, partitions: int) -> tuple[str, UUID]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    name = f"topic-{uuid4().hex[:8]}"
    admin.create_topics([confluent_kafka.admin.NewTopic(name, partitions, 1)])[name].result(30)
    return name, _topic_id(admin, name)


def _topic_id(admin: confluent_kafka.admin.AdminClient, name: str) -> UUID:
    """Waits until the broker knows the topic."""
    until = time.monotonic() + _DEADLINE_S
    while True:
        try:
            found = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(30).topic_id
        except confluent_kafka.KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            mask = (1 << 64) - 1
            return UUID(
                int=(found.get_most_significant_bits() & mask) << 64
                | (found.get_least_significant_bits() & mask)
            )


def _table(results: Sequence[Result], members: int) -> Table:
    table = Table(title="consumer groups, two cores shared by servers and members", title_justify="left")
    for column in (
        "",
        "protocol",
        "deaths",
        "p50 s",
        "p99 s",
        f"{members} members start, s",
        "CPU s",
        "CPU s in 10 s",
    ):
        table.add_column(column, justify="left" if column in ("", "protocol") else "right")
    for result in results:
        in_order = sorted(result.deaths_s)
        p50 = statistics.median(in_order)
        p99 = in_order[min(len(in_order) - 1, int(len(in_order) * 0.99))]
        large = result.large
        figures = (p50, p99, large.start_s, large.start_cpu_s, large.steady_cpu_s)
        table.add_row(
            result.target, result.protocol, str(len(in_order)), *(f"{figure:.2f}" for figure in figures)
        )
    return table


if __name__ == "__main__":
    main()
