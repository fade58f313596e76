"""`python -m benchmarks.agent_death`: how long clients stand still when one of three servers dies or freezes.

The same clients (`tests/support/stalls.py`) use three agents of Tidelog and three brokers of Apache Kafka
with their defaults, plus a separate controller that stays alive. Each round kills (SIGKILL) or freezes
(SIGSTOP) the server that coordinates both groups and serves its share of the partitions. Then the server
starts again, and the next round begins when all is steady.

Client settings are librdkafka's defaults, but for `enable.idempotence`, synchronous commits and, after
SIGSTOP, `socket.timeout.ms` and `request.timeout.ms` (`_FROZEN_CLIENT` of `tests/support/server_death.py`):
clients of a frozen server that hold a request wait for their own time limit, whatever the other servers know.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
from rich.console import Console
from rich.table import Table

from tests.support.apache_kafka import kafka_cluster
from tests.support.server_death import LONGEST_S, SIGNALS, Cluster, Result, measure, of_stack, p50, p99
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

SERVERS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_death", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of each kind (default: 30)")
    parser.add_argument("--only", choices=("kafka", "tidelog"), help="only one of the two")
    parser.add_argument("--how", choices=tuple(SIGNALS), help="only one way to die")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    arguments = parser.parse_args()
    console = Console()
    results = []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        for name, start in (("tidelog", tidelog_cluster), ("kafka", _kafka_cluster)):
            if arguments.only not in (None, name):
                continue
            for how in SIGNALS:
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


def _prefer_first_replicas(bootstrap: str) -> None:
    """Gives a restarted broker its partitions and groups. Kafka itself does this within five minutes."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    until_s = time.monotonic() + LONGEST_S
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
            shown.add_row(
                result.cluster, result.how, role, str(len(stalls_s)), *(f"{f:.2f}" for f in figures), times
            )
    return shown


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
