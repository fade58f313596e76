"""Apache Kafka's own producer, running during a test that does harm: `SteadyProducer.java`, watched through
its output.

Promises that the program ends with the block, and that every wait has a timeout.
"""

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.clients.adapters import Read
from tests.support.java import Java

_SOURCE = Path(__file__).with_name("SteadyProducer.java")
_POLL_S = 0.02


class JavaProducer:
    """`with JavaProducer(java, servers, topic, partitions) as producer:`; `finish` ends it and returns what
    it says.
    """

    def __init__(self, java: Java, servers: str, topic: str, partitions: int, **settings: str) -> None:
        compiled = java.compiled(_SOURCE)
        given = {
            "bootstrap.servers": servers,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._command = [
            "java",
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-cp",
            compiled.classpath,
        ]
        self._command += ["SteadyProducer", topic, str(partitions), "200"]
        self._command += [f"{name}={value}" for name, value in given.items()]
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """By number: partition and offset, -1 where the agent did not know any more."""
        self.refused: list[str] = []
        self._ended = False
        self._errors: list[str] = []

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_output, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(20)
        for reader in self._readers:
            reader.join(20)

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("!"):
                self.refused.append(line.strip())
            elif line.strip() == "end":
                self._ended = True
            else:
                number, partition, offset = map(int, line.split())
                self.acknowledged[number] = (partition, offset)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def wait_for_acknowledgements(self, more: int, timeout_s: float) -> None:
        """Raises `TimeoutError`."""
        wanted, until = len(self.acknowledged) + more, time.monotonic() + timeout_s
        while len(self.acknowledged) < wanted:
            if time.monotonic() > until or self._process.poll() is not None:
                raise TimeoutError(
                    f"Java has {len(self.acknowledged)} of {wanted}: {''.join(self._errors[-20:])}"
                )
            time.sleep(_POLL_S)

    def finish(self, timeout_s: float) -> Mapping[int, tuple[int, int]]:
        """Ends it when everything is answered; raises `AssertionError` if it gave a record up."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join(20)
        assert self._ended, f"it did not answer everything: {''.join(self._errors[-20:])}"
        assert not self.refused, f"{len(self.refused)} given up: {self.refused[:5]}"
        return self.acknowledged


def check_log(acknowledged: Mapping[int, tuple[int, int]], log: Mapping[int, Sequence[Read]]) -> None:
    """Checks that each number is there once, in order within its partition, at the acknowledged offset if one
    is known.
    """
    partitions = len(log)
    numbers = {
        partition: [int(record.value) for record in records if record.value]
        for partition, records in log.items()
    }
    for partition, found in numbers.items():
        assert found == list(range(partition, partition + partitions * len(found), partitions)), partition
    assert sum(map(len, numbers.values())) == len(acknowledged)
    told = {number: place for number, place in acknowledged.items() if place[1] >= 0}
    assert told == {
        number: (partition, offset)
        for partition, found in numbers.items()
        for offset, number in enumerate(found)
        if number in told
    }
