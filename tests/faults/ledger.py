"""What producers sent, what was acknowledged, and whether it agrees with what consumers read.

Content is a function of (seed, producer, sequence), so that nothing need be kept but acknowledgements, and a
failing seed can be run again. Promises of `check_log`: every acknowledged record is at the partition and
offset acknowledged, with the key, value, headers and timestamp that were sent; none of a producer's records
is there twice; in a partition a producer's records stand in the order sent.
"""

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]
Place = tuple[int, int]
"""Partition and offset."""

_FIRST_TIMESTAMP_MS = 1_600_000_000_000
_HEADER_NAMES = ("trace", "trace", "empty", "größe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record without its place."""

    key: bytes | None
    value: bytes
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record and where it was read."""

    partition: int
    offset: int
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One entry of a producer's sequence: its partition and its content."""

    producer: int
    sequence: int
    partition: int
    record: Record


class Contents:
    """The records that the producers of one run send, by seed."""

    def __init__(self, seed: int, partitions: int, largest_value_bytes: int = 1_500) -> None:
        self.seed = seed
        self.partitions = partitions
        self._largest_value_bytes = largest_value_bytes

    def written(self, producer: int, sequence: int) -> Written:
        """Always the same for the same arguments."""
        chance = random.Random(f"{self.seed}/{producer}/{sequence}")
        names = chance.sample(_HEADER_NAMES, chance.choice((0, 0, 1, 3)))
        record = Record(
            key=chance.choice((None, b"", chance.randbytes(8), b"%d" % (sequence % 97))),
            value=b"%d %d " % (producer, sequence)
            + chance.randbytes(chance.randint(0, self._largest_value_bytes)),
            headers=tuple((name, chance.choice((None, b"", chance.randbytes(5)))) for name in names),
            timestamp_ms=_FIRST_TIMESTAMP_MS + chance.randint(0, 10_000_000_000),
        )
        return Written(
            producer=producer, sequence=sequence, partition=chance.randrange(self.partitions), record=record
        )

    @staticmethod
    def identify(record: Record) -> tuple[int, int]:
        """The producer and sequence that a record names. Raises ValueError."""
        producer, sequence, _ = record.value.split(b" ", 2)
        return int(producer), int(sequence)


class Ledger:
    """Counts what was sent and keeps what was acknowledged. Safe between threads."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._lock = threading.Lock()
        self._unanswered: dict[int, set[int]] = {}
        self._counts: dict[int, int] = {}
        self._acknowledged: dict[tuple[int, int], tuple[int, int]] = {}
        self._refused: dict[tuple[int, int], str] = {}

    def sent(self, producer: int, sequence: int) -> None:
        """The record was handed to the client."""
        with self._lock:
            self._unanswered.setdefault(producer, set()).add(sequence)

    def acknowledged(self, producer: int, sequence: int, partition: int, offset: int) -> None:
        with self._lock:
            self._unanswered[producer].remove(sequence)
            self._counts[producer] = self._counts.get(producer, 0) + 1
            self._acknowledged[producer, sequence] = (partition, offset)

    def refused(self, producer: int, sequence: int, reason: str) -> None:
        """The client gave up: it may be in the log or not."""
        with self._lock:
            self._unanswered[producer].remove(sequence)
            self._refused[producer, sequence] = reason

    def in_flight(self, producer: int) -> frozenset[int]:
        """Sequences without an answer now."""
        with self._lock:
            return frozenset(self._unanswered.get(producer, ()))

    def acknowledged_count(self, producer: int) -> int:
        with self._lock:
            return self._counts.get(producer, 0)

    def refusals(self) -> Mapping[tuple[int, int], str]:
        with self._lock:
            return dict(self._refused)

    def places(self) -> Mapping[tuple[int, int], Place]:
        """The place of each acknowledged record, by producer and sequence, without those whose answer named
        no place.
        """
        with self._lock:
            return {name: place for name, place in self._acknowledged.items() if place[1] >= 0}

    def ends(self) -> dict[int, int]:
        """Per partition the offset after the last one acknowledged."""
        with self._lock:
            ends = dict.fromkeys(range(self.contents.partitions), 0)
            for partition, offset in self._acknowledged.values():
                ends[partition] = max(ends[partition], offset + 1)
            return ends

    def check_log(self, log: Mapping[int, Sequence[ReadRecord]]) -> list[str]:
        """The faults of `log` (per partition, in reading order), in words. Empty if there are none."""
        faults: list[str] = []
        places: dict[tuple[int, int], tuple[int, int]] = {}
        for partition, records in log.items():
            faults += _gaps(partition, records)
            faults += self._check_partition(partition, records, places)
        with self._lock:
            lost = [name for name in self._acknowledged if name not in places]
            # A producer may have been told that the record is there, and not where: its answer was lost.
            told = {n: place for n, place in self._acknowledged.items() if place[1] >= 0}
        moved = [n for n, place in told.items() if n in places and places[n] != place]
        faults += [f"lost: {name} acknowledged at {self._acknowledged[name]}" for name in sorted(lost)]
        faults += [
            f"moved: {n} acknowledged at {self._acknowledged[n]}, read at {places[n]}" for n in sorted(moved)
        ]
        return faults

    def _check_partition(
        self, partition: int, records: Iterable[ReadRecord], places: dict[tuple[int, int], tuple[int, int]]
    ) -> Iterable[str]:
        latest: dict[int, int] = {}
        for read in records:
            try:
                name = self.contents.identify(read.record)
            except ValueError:
                yield f"unknown: {read} names no producer"
                continue
            producer, sequence = name
            expected = self.contents.written(producer, sequence)
            if name in places:
                yield f"duplicate: {name} at {places[name]} and at {(partition, read.offset)}"
            elif latest.get(producer, -1) > sequence:
                yield f"disorder: {name} after sequence {latest[producer]} in partition {partition}"
            if expected.partition != partition or expected.record != read.record:
                yield f"changed: {name} at {(partition, read.offset)} is {read.record}, was {expected}"
            places[name] = (partition, read.offset)
            latest[producer] = sequence


def _gaps(partition: int, records: Sequence[ReadRecord]) -> list[str]:
    """Offsets of a partition are without gaps and a reader sees each once, in order (P2, P3)."""
    offsets = [read.offset for read in records]
    if offsets == list(range(len(offsets))):
        return []
    at = next(index for index, offset in enumerate(offsets) if offset != index)
    return [
        (
            f"gap or repetition: partition {partition} at reading position {at}: "
            f"{offsets[max(0, at - 2) : at + 3]}"
        )
    ]
