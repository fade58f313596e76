"""The table of a compacted topic, as keys are updated: `python -m benchmarks.state_table`.

A topic of one partition gets a record for each of a million keys, and is compacted. Then some keys get new
records, and it is compacted again: a share of all keys, chosen at random, or new ones. Measured are the
seconds of `tidelog compact`, the Parquet bytes of the new records, and those of the files that had to be
rewritten. The write amplification is both together, by the first alone.

One agent, its Postgres and the store share the machine, as in `benchmarks.compaction`.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
import confluent_kafka.admin
from rich.console import Console
from rich.table import Table

from benchmarks.compaction import Log, running
from spark_compaction.compact import compact_topics
from spark_compaction.session import stop_spark

_TOPIC: Final = "state"
_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    records: int
    seconds: float
    written_bytes: int
    rewritten_bytes: int
    rewritten_files: int

    @property
    def amplification(self) -> float:
        return (self.written_bytes + self.rewritten_bytes) / max(1, self.written_bytes)


def measure(log: Log, keys: int, value_bytes: int) -> list[Result]:
    bootstrap = log.stack.addresses.bootstrap
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    topic = confluent_kafka.admin.NewTopic(_TOPIC, 1, 1, config=_CONFIG)
    admin.create_topics([topic])[_TOPIC].result(60)
    chance = random.Random(1)
    steps: list[tuple[str, list[int]]] = [
        ("all keys", list(range(keys))),
        ("10 % at random", chance.sample(range(keys), keys // 10)),
        ("the same 10 %", []),
        ("0.1 % at random", chance.sample(range(keys), keys // 1000)),
        ("10 % new keys", list(range(keys, keys + keys // 10))),
    ]
    steps[2] = (steps[2][0], steps[1][1])
    return [_step(log, bootstrap, name, chosen, value_bytes) for name, chosen in steps]


def _step(log: Log, bootstrap: str, name: str, keys: list[int], value_bytes: int) -> Result:
    _write(bootstrap, keys, value_bytes)
    began_s = time.monotonic()
    [done] = compact_topics(log.settings, [_TOPIC]).topics
    seconds = time.monotonic() - began_s
    assert done.rows == len(keys), done
    return Result(
        name=name,
        records=len(keys),
        seconds=seconds,
        written_bytes=done.parquet_bytes,
        rewritten_bytes=done.rewritten_bytes,
        rewritten_files=done.rewritten_files,
    )


def _write(bootstrap: str, keys: Iterable[int], value_bytes: int) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    chance = random.Random(2)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(500)]
    for key in keys:
        value = " ".join(chance.choices(words, k=value_bytes // 7)).encode()
        while True:
            try:
                producer.produce(_TOPIC, key=b"user-%d" % key, value=value)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(300) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as log:
        results = measure(log, asked.keys, asked.value_bytes)
    stop_spark()
    table = Table(title=f"{asked.keys:,} keys, values of {asked.value_bytes} bytes")
    for name in ("update", "records", "s", "new MB", "rewritten MB", "files", "amplification"):
        table.add_column(name, justify="right")
    for each in results:
        table.add_row(
            each.name,
            f"{each.records:,}",
            f"{each.seconds:.1f}",
            f"{each.written_bytes / 1e6:.2f}",
            f"{each.rewritten_bytes / 1e6:.2f}",
            str(each.rewritten_files),
            f"{each.amplification:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
