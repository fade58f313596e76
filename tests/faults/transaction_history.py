"""What transactions did and what readers saw, and whether the two fit (as Elle checks lists that are appended
to).

Each transaction appends one value, its own name, to some partitions. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

Place = tuple[int, int]
"""A partition and an offset."""


class End(Enum):
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()
    """The client was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    name: bytes
    partitions: frozenset[int]
    end: End


def faults(
    transactions: Iterable[Transaction],
    final: Mapping[Place, bytes],
    reads: Sequence[Sequence[tuple[Place, bytes]]] = (),
) -> list[str]:
    """Returns what is wrong. `final`: all committed records in the end, by place. `reads`: what readers of
    committed data saw meanwhile, each in its order.

    - A committed transaction is in each of its partitions, once; an aborted one in none.
    - One whose end is unknown is in all of its partitions or in none.
    - A producer's committed transactions are in each partition in their order.
    - A reader sees records that are there in the end, in the order of their offsets, and misses none.
    """
    found: list[str] = []
    seen: dict[bytes, Counter[int]] = {}
    for (partition, _), name in final.items():
        seen.setdefault(name, Counter())[partition] += 1
    known = {transaction.name for transaction in transactions}
    found += [f"{name!r} was never written" for name in seen.keys() - known]
    for transaction in transactions:
        found += _faults_of(transaction, seen.get(transaction.name, Counter()))
    found += _disorder(final)
    for read in reads:
        found += _faults_of_reader(read, final)
    return found


def _faults_of(transaction: Transaction, places: Counter[int]) -> list[str]:
    name, partitions = transaction.name, transaction.partitions
    if any(times > 1 for times in places.values()):
        return [f"{name!r} is there twice: {dict(places)}"]
    if set(places) - partitions:
        return [f"{name!r} is in partitions that it did not write: {sorted(set(places) - partitions)}"]
    if transaction.end is End.ABORTED and places:
        return [f"{name!r} was aborted and is seen in {sorted(places)}"]
    if transaction.end is End.COMMITTED and set(places) != partitions:
        return [f"{name!r} was committed and is not in {sorted(partitions - set(places))}"]
    if transaction.end is End.UNKNOWN and places and set(places) != partitions:
        return [f"{name!r} is seen in {sorted(places)} and not in {sorted(partitions - set(places))}"]
    return []


def _disorder(final: Mapping[Place, bytes]) -> list[str]:
    """Names are `producer:number`."""
    last: dict[tuple[int, bytes], int] = {}
    found = []
    for partition, offset in sorted(final):
        producer, _, number = final[partition, offset].rpartition(b":")
        if int(number) <= last.get((partition, producer), -1):
            found.append(f"{final[partition, offset]!r} is out of order in partition {partition}")
        last[partition, producer] = int(number)
    return found


def _faults_of_reader(read: Sequence[tuple[Place, bytes]], final: Mapping[Place, bytes]) -> list[str]:
    reached: dict[int, int] = {}
    found = []
    for (partition, offset), name in read:
        if offset <= reached.get(partition, -1):
            found.append(f"a reader went back to {partition}/{offset}")
        if final.get((partition, offset)) != name:
            found.append(f"a reader saw {name!r} at {partition}/{offset}, which is not there in the end")
        reached[partition] = offset
    seen = {place for place, _ in read}
    found += [
        f"a reader missed {final[place]!r} at {place[0]}/{place[1]}"
        for place in final
        if place[1] <= reached.get(place[0], -1) and place not in seen
    ]
    return found


def processed(place: Place, name: bytes) -> bytes:
    """The value of a record that was made of the record at `place` (`faults_of_processing`)."""
    return b"%d/%d %s" % (*place, name)


def faults_of_processing(
    source: Mapping[Place, bytes], sinks: Mapping[str, Mapping[Place, bytes]]
) -> list[str]:
    """Returns what is wrong with records that were read from one topic and written to others, partition by
    partition, in transactions with the offsets read.

    `source`, `sinks`: all committed records in the end, by place. Each record of the source is in each sink
    once, in the order of the source.
    """
    expected = _by_partition({place: processed(place, name) for place, name in source.items()})
    found: list[str] = []
    for sink, records in sinks.items():
        written = _by_partition(records)
        for partition in sorted({*expected, *written}):
            were, are = expected.get(partition, []), written.get(partition, [])
            if were == are:
                continue
            missing, doubled = Counter(were) - Counter(are), Counter(are) - Counter(were)
            found += [f"{value!r} is lost in {sink}" for value in missing]
            found += [f"{value!r} is doubled or made up in {sink}" for value in doubled]
            if not missing and not doubled:
                found.append(f"partition {partition} of {sink} is out of order")
    return found


def _by_partition(records: Mapping[Place, bytes]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for place in sorted(records):
        found.setdefault(place[0], []).append(records[place])
    return found
