"""Java's producer with its defaults, by Kafka's ProducerPerformance: what a first user sees.

A producer of one partition has at most five requests of one 16 KiB batch in flight. So its throughput depends
on the cycle from a request to its answer and to the next request. An agent's part is an upload and a commit.
The goal is their time plus six milliseconds. `python -m benchmarks.producer_defaults` runs on MinIO with an
agent's default settings, and on the stack of `tidelog dev`.
"""

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka.admin

from benchmarks.endpoints import minio
from benchmarks.figures import Figures, per
from benchmarks.systems.meters import scrape, total
from benchmarks.systems.tidelog import tidelog
from tests.support.apache_kafka import jars
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

IN_FLIGHT: Final = 5
RECORD_BYTES: Final = 500
GOAL_MS: Final = 6.0
"""What a cycle may take in addition to the upload and the commit."""
_WARM_UP_S: Final = 4.0
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 600.0
_SUMMARY = re.compile(
    r"records sent, ([0-9.]+) records/sec \(([0-9.]+) MB/sec\), ([0-9.]+) ms avg latency", re.MULTILINE
)
_REASONS: Final = ("window", "token", "age", "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    partitions: int
    properties: tuple[str, ...] = ()


CASES: Final = (
    Case(name="1 partition", partitions=1),
    Case(name="12 partitions", partitions=12),
    Case(name="1 partition, tuned", partitions=1, properties=("batch.size=262144", "linger.ms=50")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where records go, and the agents whose counters are read."""

    name: str
    bootstrap: str
    http_urls: Sequence[str]


def measure(place: Place, case: Case, seconds: float) -> Figures:
    """Times are means, as the agents' histograms have their sums."""
    topic = f"defaults-{case.name.replace(' ', '-').replace(',', '')}-{time.time_ns()}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": place.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, case.partitions, 1)])[topic].result(30)
    records = _records_for(place, topic, case, seconds)
    process = _performance(place, topic, case, records)
    try:
        time.sleep(_WARM_UP_S)
        before, before_s = _counters(place), time.perf_counter()
        while process.poll() is None and time.perf_counter() < before_s + seconds:
            time.sleep(_POLL_S)
        after, wall_s = _counters(place), time.perf_counter() - before_s
        said, _ = process.communicate(timeout=_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    summary = _SUMMARY.findall(said)
    if process.returncode or not summary:
        raise RuntimeError(f"ProducerPerformance ended with {process.returncode}: {said[-2_000:]}")
    return _figures(
        {name: after[name] - before[name] for name in after}, wall_s, latency_ms=float(summary[-1][2])
    )


def _figures(grown: Mapping[str, float], wall_s: float, *, latency_ms: float) -> Figures:
    put_ms = 1e3 * per(grown["put_sum"], grown["put_count"])
    commit_ms = 1e3 * per(grown["commit_sum"], grown["commit_count"])
    cycle_ms = 1e3 * per(IN_FLIGHT * wall_s, grown["requests"])
    return {
        "mb_per_s": grown["bytes"] / wall_s / 1e6,
        "latency_ms": latency_ms,
        "cycle_ms": cycle_ms,
        "put_ms": put_ms,
        "commit_ms": commit_ms,
        "beyond_ms": cycle_ms - put_ms - commit_ms,
        "puts_per_gib": per(grown["puts"] * (1 << 30), grown["bytes"]),
        **{f"seals_{reason}_per_s": grown[reason] / wall_s for reason in _REASONS},
    }


def _records_for(place: Place, topic: str, case: Case, seconds: float) -> int:
    """The number of records for the warm-up, the measurement and a second more, from a first short run."""
    process = _performance(place, topic, case, 20_000)
    said, _ = process.communicate(timeout=_TIMEOUT_S)
    found = _SUMMARY.findall(said)
    if not found:
        raise RuntimeError(f"ProducerPerformance ended with {process.returncode}: {said[-2_000:]}")
    return max(20_000, int(float(found[-1][0]) * (2 * _WARM_UP_S + seconds)))


def _performance(place: Place, topic: str, case: Case, records: int) -> "subprocess.Popen[str]":
    command = ["java", "-cp", jars(), "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
    command += ["--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1"]
    command += ["--producer-props", f"bootstrap.servers={place.bootstrap}", *case.properties]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _counters(place: Place) -> Mapping[str, float]:
    pages = [scrape(f"{url}/metrics") for url in place.http_urls]

    def summed(name: str, labels: str = "") -> float:
        return sum(total(page, name, labels) for page in pages)

    return {
        "requests": summed("tidelog_requests_total", 'api="Produce"'),
        "bytes": summed("tidelog_batch_bytes_total"),
        "puts": summed("tidelog_puts_total"),
        **{f"put_{end}": summed(f"tidelog_put_seconds_{end}") for end in ("sum", "count")},
        **{f"commit_{end}": summed(f"tidelog_commit_seconds_{end}") for end in ("sum", "count")},
        **{reason: summed("tidelog_seals_total", f'reason="{reason}"') for reason in _REASONS},
    }


@contextmanager
def on_minio(directory: Path) -> Iterator[Place]:
    """One agent with its default settings."""
    with minio(directory / "minio") as endpoint, tidelog(directory / "tidelog", endpoint) as system:
        assert system.stack is not None, "it is of this machine"
        address = system.stack.agents[0].address
        yield Place(name="MinIO", bootstrap=address.bootstrap, http_urls=[address.http_url])


@contextmanager
def on_the_dev_stack(directory: Path) -> Iterator[Place]:
    """A stack as `tidelog dev` starts it: two agents and an S3 endpoint."""
    with Stack(StackSettings(environment=Environment.of_process(), data_dir=directory / "dev")) as stack:
        addresses = [agent.address for agent in stack.agents]
        urls = [address.http_url for address in addresses]
        yield Place(name="dev stack", bootstrap=addresses[0].bootstrap, http_urls=urls)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.producer_defaults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="How long each case is measured.")
    parser.add_argument("--place", choices=("minio", "dev", "both"), default="both")
    given = parser.parse_args()
    for name, place_of in (("minio", on_minio), ("dev", on_the_dev_stack)):
        if given.place in (name, "both"):
            with ExitStack() as opened:
                directory = Path(
                    opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
                )
                place = opened.enter_context(place_of(directory))
                for case in CASES:
                    _print(place, case, measure(place, case, given.seconds))


def _print(place: Place, case: Case, figures: Figures) -> None:
    seals = ", ".join(f"{figures[f'seals_{reason}_per_s']:.1f} {reason}" for reason in _REASONS)
    print(
        f"{place.name}, {case.name}: {figures['mb_per_s']:.1f} MB/s, {figures['latency_ms']:,.0f} ms mean "
        "latency\n"
        f"  cycle {figures['cycle_ms']:.1f} ms = PUT {figures['put_ms']:.1f} + commit "
        f"{figures['commit_ms']:.1f} + "
        f"{figures['beyond_ms']:.1f} (goal: at most {GOAL_MS:g}); {figures['puts_per_gib']:,.0f} PUTs per "
        "GiB; "
        f"seals per s: {seals}",
        flush=True,
    )


if __name__ == "__main__":
    main()
