"""`/v1/topics/{name}/coordinates`: where the records of a partition are, for readers that read the bucket
themselves (`spark_source/`).

A page has pieces in offset order without overlaps: Parquet files where history has the records, and runs of
record batches elsewhere. The last piece ends at the last stable offset at the latest. Offsets between two
pieces have expired, or history has no record of them, because a transaction was aborted or ended there.

Runs also hold records of aborted transactions, and markers. A reader leaves them out: a page names the
aborted transactions that overlap its runs.

Promises:
- The cost of an answer depends only on its size: at most `limit` pieces, by a few statements.
- A page of several runs names at most `coordinates.MAX_ABORTED` aborted transactions. One run may overlap
  more.
- Longer answers are built in a thread, which lets the event loop go on.
- Every piece names an object that was not garbage when it was read. Merging and retention may make it garbage
  at any time. It then stays for TIDELOG_GARBAGE_GRACE_S. A reader that comes later asks again: offsets do not
  move.
- If a record leaves the log for history meanwhile, the answer still has it: offsets that the log no longer
  has are looked up in history once more.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from agent.http.errors import InvalidRequest
from agent.http.parts import HttpParts
from cache_ring.pages.row_groups import is_row_group
from sequencer.client import Sequencer
from sequencer.commits.coordinates import CoordinateRequest, PartitionCoordinates, RunCoordinate
from sequencer.database.database import SequencerUnavailable
from sequencer.history.history_values import TableFile
from sequencer.topics.topics import Topic, UnknownTopic
from storage.arrow.aborted_batches import AbortedTransaction, overlapping
from storage.identifiers import Offset, Partition
from storage.threads import Threads

_MAX_PAGE = 1_000
_MAX_ABORTED_ON_LOOP = 1_000
"""Pages of partitions with more aborted transactions are built in a thread. This many take a millisecond."""
_ATTEMPTS = 4
"""To read the aborted transactions of one run, which merging and log compaction may swap meanwhile, and the
log start may pass."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The object has the offsets `[first_offset, end_offset)`. A run has them within `length` bytes at
    `position`: whole batches of the offsets `[base_offset, last_offset]`.

    The least and the greatest timestamp are those of the whole object or run. -1: some record has none, or
    for the greatest timestamp no record has one.
    """

    kind: Literal["parquet", "raw"]
    first_offset: int
    end_offset: int
    object_key: str
    position: int
    length: int
    base_offset: int
    last_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int


def pieces_of(
    files: Sequence[TableFile],
    runs: Sequence[RunCoordinate],
    log_start_offset: int,
    from_offset: int,
    to_offset: int,
) -> list[Piece]:
    """Returns the pieces of `[from_offset, to_offset)` in order: the files, and between them the runs of the
    log.

    Pure. `files` and `runs` are in offset order. Files do not overlap each other, nor do runs.
    """
    found: list[Piece] = []
    gap_start = from_offset
    for file in files:
        found += _runs_between(runs, max(gap_start, log_start_offset), min(file.first_offset, to_offset))
        first, end = max(from_offset, file.first_offset), min(file.last_offset + 1, to_offset)
        if first < end:
            found.append(_of_file(file, first, end))
        gap_start = max(gap_start, file.last_offset + 1)
    return found + _runs_between(runs, max(gap_start, log_start_offset), to_offset)


def _runs_between(runs: Sequence[RunCoordinate], start: int, end: int) -> list[Piece]:
    """Leaves out coordinates of row groups, because their files are named instead."""
    return [
        _of_run(run, max(start, run.base_offset), min(end, run.last_offset + 1))
        for run in runs
        if max(start, run.base_offset) < min(end, run.last_offset + 1) and not is_row_group(run)
    ]


def _of_file(file: TableFile, first: int, end: int) -> Piece:
    return Piece(
        kind="parquet",
        first_offset=first,
        end_offset=end,
        object_key=file.object_key,
        position=0,
        length=file.size_bytes,
        base_offset=file.first_offset,
        last_offset=file.last_offset,
        min_timestamp_ms=-1 if file.has_untimed else _milliseconds(file.oldest),
        max_timestamp_ms=_milliseconds(file.newest),
    )


def _of_run(run: RunCoordinate, first: int, end: int) -> Piece:
    return Piece(
        kind="raw",
        first_offset=first,
        end_offset=end,
        object_key=run.object_key,
        position=run.position,
        length=run.length,
        base_offset=run.base_offset,
        last_offset=run.last_offset,
        min_timestamp_ms=run.min_timestamp_ms,
        max_timestamp_ms=run.max_timestamp_ms,
    )


def _milliseconds(time: datetime | None) -> int:
    return -1 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    head: PartitionCoordinates
    pieces: Sequence[Piece]
    reached: int
    end: int
    """The page ends at `reached`. There are more pages if that is below `end`."""

    def json(self) -> bytes:
        """Builds the answer. The entries are written one by one: json.dumps of a million of them would hold
        the interpreter's lock throughout, also in a thread.
        """
        others = {
            "topic_id": str(self.head.topic_id),
            "partition": self.head.partition,
            "log_start_offset": self.head.log_start_offset,
            "high_watermark": self.head.high_watermark,
            "last_stable_offset": self.head.last_stable_offset,
            "pieces": [asdict(piece) for piece in self.pieces],
            "next": self.reached if self.reached < self.end else None,
        }
        aborted = ",".join(
            f'{{"last_offset":{last},"first_offset":{first},"producer_id":{producer}}}'
            for last, first, producer in _overlapping(self.head, self.pieces)
        )
        return f'{json.dumps(others)[:-1]}, "aborted": [{aborted}]}}'.encode()


class CoordinatesApi:
    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts
        self._threads = Threads("coordinates", 1)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/topics", tags=["topics"])
        router.add_api_route("/{name}/coordinates", self.read, methods=["GET"])
        return router

    async def read(
        self,
        name: str,
        partition: Annotated[int, Query(ge=0)],
        from_offset: Annotated[int, Query(ge=0, le=_LARGEST_OFFSET)] = 0,
        to_offset: Annotated[int, Query(ge=0, le=_LARGEST_OFFSET)] = _LARGEST_OFFSET,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE,
    ) -> Response:
        """Returns one page of a partition. Pass `next` as `from_offset` for the next page; null at the
        end.
        """
        topic = await self._find(name)
        if partition >= topic.partition_count:
            raise InvalidRequest(f"Topic '{name}' has {topic.partition_count} partitions.")
        page = await self._page(topic, Partition(partition), from_offset, to_offset, limit)
        if len(page.head.aborted or ()) <= _MAX_ABORTED_ON_LOOP:
            content = page.json()
        else:
            content = await self._threads.run(page.json)
        return Response(content, media_type="application/json")

    async def _page(
        self, topic: Topic, partition: Partition, from_offset: int, to_offset: int, limit: int
    ) -> _Page:
        files, state_to = await self._files(topic, partition, from_offset, limit)
        while True:
            start = _end_of_front(files, from_offset)
            head = await self._runs(topic, partition, start, limit)
            if head.log_start_offset <= start:
                break
            # Runs that the log dropped may have moved to history since.
            again = await self._files(topic, partition, from_offset, limit)
            if again == (files, state_to):
                break
            files, state_to = again
        end = min(to_offset, head.last_stable_offset)
        reached = min(end, _known_end(files, head, limit))
        if from_offset < state_to:  # there, the log alone has all records
            reached = min(reached, state_to)
        pieces = pieces_of(files, head.runs, head.log_start_offset, from_offset, reached)
        if len(pieces) > limit:
            pieces = pieces[:limit]
            reached = pieces[-1].end_offset
        return _Page(head=head, pieces=pieces, reached=reached, end=end)

    async def _files(
        self, topic: Topic, partition: Partition, from_offset: int, limit: int
    ) -> tuple[tuple[TableFile, ...], Offset]:
        return await self._sequencer().history.log_files_from(
            topic.topic_id, partition, Offset(from_offset), limit
        )

    async def _runs(
        self, topic: Topic, partition: Partition, from_offset: int, limit: int
    ) -> PartitionCoordinates:
        """With the aborted transactions that overlap the runs. If these are too many, the first run alone."""
        for max_runs in [limit, *[1] * _ATTEMPTS]:
            asked = CoordinateRequest(
                topic_id=topic.topic_id,
                partition=partition,
                from_offset=Offset(from_offset),
                max_runs=max_runs,
            )
            found = await self._sequencer().coordinates.read([asked])
            try:
                head = found[topic.topic_id, partition]
            except KeyError:
                raise UnknownTopic(f"Topic '{topic.name}' is being deleted.") from None
            if head.aborted is not None:
                return head
            if max_runs == 1:
                aborted = await self._all_aborted(head)
                if aborted is not None:
                    return replace(head, aborted=aborted)
        raise SequencerUnavailable(
            "the run was swapped or the log start has moved whenever aborted transactions were read"
        )

    async def _all_aborted(self, head: PartitionCoordinates) -> tuple[AbortedTransaction, ...] | None:
        """Those that overlap the one run. None: it was swapped meanwhile, or the log start has moved."""
        of_batches = [run for run in head.runs if not is_row_group(run)]
        if not of_batches:
            return ()
        return await self._sequencer().coordinates.aborted_of_run(of_batches[0], head.log_start_offset)

    async def _find(self, name: str) -> Topic:
        found = await self._sequencer().topics.by_name([name])
        if name not in found:
            raise UnknownTopic(f"There is no topic '{name}'.")
        return found[name]

    def _sequencer(self) -> Sequencer:
        sequencer = self._parts.sequencer()
        if sequencer is None:
            raise SequencerUnavailable("The agent has not reached its database yet; /ready says why.")
        return sequencer


def _end_of_front(files: Sequence[TableFile], from_offset: int) -> int:
    """Returns the offset from which the log is needed: behind the files that cover offsets without a gap from
    the start.
    """
    start = from_offset
    for file in files:
        if file.first_offset > start:
            break
        start = file.last_offset + 1
    return start


def _overlapping(head: PartitionCoordinates, pieces: Sequence[Piece]) -> Sequence[AbortedTransaction]:
    """Returns the aborted transactions that the page's runs may have records of."""
    runs = [piece for piece in pieces if piece.kind == "raw"]
    return overlapping(head.aborted or (), runs[0].first_offset, runs[-1].end_offset) if runs else ()


def _known_end(files: Sequence[TableFile], head: PartitionCoordinates, limit: int) -> int:
    """Returns the offset up to which both lists are complete. There may be more files behind a full list, and
    more runs behind the last one.
    """
    ends = [_LARGEST_OFFSET]
    if len(files) == limit:
        ends.append(files[-1].last_offset + 1)
    if head.runs:
        ends.append(head.runs[-1].last_offset + 1)
    return min(ends)
