"""Decides which task reads what, and where a micro-batch ends. Pure, but for a log line.

Promises:
- The tasks cover each wanted offset once, in order within a task.
- A micro-batch takes at most the offsets allowed, from the partitions in proportion to what each has waiting,
  and at least one, so that a stream always comes forward.
- An object that cannot hold a wanted record is not read.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from spark_source.agents import PartitionEnds, Piece
from spark_source.settings import SourceSettings
from spark_source.window import Window
from storage.encryption.topic_keyring import ReadKeyring

log = logging.getLogger("tidelog")

PartitionOf = tuple[str, int]
"""A topic's name and a partition of it."""


class DataLoss(Exception):
    """Records that the query asked for cannot be read. `failOnDataLoss=false` goes on without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What all tasks of a query share. It travels to the executors."""

    settings: SourceSettings
    columns: tuple[str, ...]
    window: Window
    fail_on_data_loss: bool


def heed_loss(words: str, *, fail: bool) -> None:
    """Raises DataLoss, or logs what is missing."""
    if words and fail:
        raise DataLoss(
            f"{words}: retention or DeleteRecords took them. To go on without them, set failOnDataLoss=false."
        )
    if words:
        log.warning("tidelog: %s; failOnDataLoss=false goes on without them", words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Offsets `[first_offset, end_offset)` of a partition. `is_strict`: the first of them must be there."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    is_strict: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """One task: pieces of one partition, in offset order."""

    topic: str
    partition: int
    pieces: tuple[Piece, ...]
    keyring: ReadKeyring | None = field(default=None, repr=False)
    """None: the topic has no keys. Spark sends a task to one executor, and writes it nowhere."""


def wanted(pieces: Iterable[Piece], window: Window) -> Iterator[Piece]:
    """The pieces that may hold wanted records."""
    return (piece for piece in pieces if window.may_hold(piece.min_timestamp_ms, piece.max_timestamp_ms))


def missing(
    asked: Asked, pieces: Sequence[Piece], ends_now: Callable[[str, int], PartitionEnds | None]
) -> str:
    """What of the range is no longer there, as words; empty if nothing. Holes between pieces have expired, or
    never had a record to read. Such a hole may lie at an edge, so there the partition's ends decide:
    `ends_now(topic, partition)` reads them after the pieces.
    """
    if not asked.is_strict or asked.first_offset >= asked.end_offset:
        return ""
    begins_late = not pieces or pieces[0].first_offset > asked.first_offset
    ends_early = not pieces or pieces[-1].end_offset < asked.end_offset
    ends = ends_now(asked.topic, asked.partition) if begins_late or ends_early else None
    where = f"partition {asked.partition} of topic {asked.topic!r}"
    if begins_late and (ends is None or ends.first_offset > asked.first_offset):
        if not pieces:
            return f"{where} has none of the offsets [{asked.first_offset}, {asked.end_offset})"
        return f"{where} has lost offsets [{asked.first_offset}, {pieces[0].first_offset})"
    if ends_early and (ends is None or ends.end_offset < asked.end_offset):
        reached = pieces[-1].end_offset if ends is None else ends.end_offset
        return f"{where} ends before offset {reached}, not {asked.end_offset}"
    return ""


def plan_reads(
    found: Mapping[PartitionOf, list[Piece]],
    *,
    task_bytes: int,
    min_partitions: int,
    keyrings: Mapping[str, ReadKeyring] | None = None,
) -> list[PlannedRead]:
    """Tasks of about `task_bytes` each, or smaller ones so that there are `min_partitions` of them.
    `keyrings`: those of encrypted topics, by the topic's name.
    """
    own = keyrings or {}
    total = sum(piece.length for pieces in found.values() for piece in pieces)
    most = max(1, min(task_bytes, total // min_partitions))
    return [
        PlannedRead(
            topic=topic,
            partition=partition,
            pieces=tuple(group),
            keyring=own.get(topic),
        )
        for (topic, partition), pieces in sorted(found.items())
        for group in _groups(pieces, most)
    ]


def _groups(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    size = 0
    for piece, weight in (part for whole in pieces for part in _parts(whole, most)):
        if group and size + weight > most:
            yield group
            group, size = [], 0
        group.append(piece)
        size += weight
    if group:
        yield group


def _parts(piece: Piece, most: int) -> Iterator[tuple[Piece, int]]:
    """The piece, and its bytes. A large Parquet file is read by several tasks, each a range of its offsets. A
    run is read whole.
    """
    offsets = piece.end_offset - piece.first_offset
    count = min(-(-piece.length // most), offsets) if piece.kind == "parquet" else 1
    cuts = [piece.first_offset + offsets * number // count for number in range(count + 1)]
    for first, end in pairwise(cuts):
        yield replace(piece, first_offset=first, end_offset=end), piece.length // count


def next_ends(
    starts: Mapping[PartitionOf, int], ends: Mapping[PartitionOf, int], most: int | None
) -> dict[PartitionOf, int]:
    """Where a micro-batch ends that begins at `starts`, given where the log ends and the most offsets."""
    waiting = {key: max(0, end - starts[key]) for key, end in ends.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {key: starts[key] + count for key, count in waiting.items()}
    shares = {key: count * most // total for key, count in waiting.items()}
    left = most - sum(shares.values())
    for key in sorted(waiting, key=lambda key: (-(waiting[key] * most % total), key)):
        if left > 0 and shares[key] < waiting[key]:
            shares[key] += 1
            left -= 1
    return {key: starts[key] + share for key, share in shares.items()}
