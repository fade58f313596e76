"""The bucket's journal, as recovery reads it: how far it reaches, and its content as the log's tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from recovery.plan import JournalPosition
from recovery.producers import SeenBatches
from recovery.settings import RecoverySettings
from recovery.young import Unreadable, segment_to_commit
from sequencer.commits.commits import Assigned
from sequencer.commits.outcomes import decode_outcomes
from sequencer.journal.loading import RunLeftOut, empty, finish, load_entry, load_part, load_sequences, stage
from sequencer.journal.reading import JournalFound, JournalInBucket
from sequencer.journal.recovery import RecoverySession
from storage.batches.record_batch import read_header
from storage.identifiers import ObjectKey, Partition, SegmentId
from storage.segments.journal_format import CorruptJournal, JournalHeader
from storage.segments.segment_batches import PARTITION, POSITION, TOPIC
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side

_CLOCK_SLACK = timedelta(seconds=10)
"""A commit notes its time a little before its transaction ends."""

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedJournal:
    """The result of loading the journal."""

    rows: int
    left_out: Sequence[RunLeftOut]


class BucketJournal:
    """The journal that `find` found."""

    def __init__(self, journal: JournalInBucket, found: JournalFound) -> None:
        self._journal = journal
        self.found = found

    @classmethod
    async def find(cls, store: ObjectStore, cluster: str) -> "BucketJournal | None":
        """None: the bucket has no complete checkpoint. Raises StoreUnavailable."""
        journal = JournalInBucket(store, cluster)
        found = await journal.find()
        return None if found is None else cls(journal, found)

    @property
    def position(self) -> JournalPosition:
        last = self.found.last
        return JournalPosition(
            epoch=last.epoch, number=last.number if self.found.entries else self.found.checkpoint.follows
        )

    @property
    def taken_at(self) -> datetime:
        return datetime.fromisoformat(self.found.last.taken_at)

    @property
    def complete_at(self) -> datetime:
        """Everything committed before this is in the journal. Several entries may come from one reading, and
        a writer that died may have written only the first of them. So the reading before the last one
        counts."""
        last = self.found.last
        complete = [entry for entry in self.found.entries if entry.snapshot != last.snapshot]
        return datetime.fromisoformat((complete[-1] if complete else self.found.checkpoint).taken_at)

    def passes_beyond(self, position: JournalPosition) -> int:
        """How many readings the entries after this position come from."""
        return len({entry.snapshot for entry in self._beyond(position)})

    async def is_last_commit_known(self, session: RecoverySession, position: JournalPosition) -> bool | None:
        """True if the database has the last commit of the entries after this position. None: they have no
        commit. Raises StoreUnavailable."""
        for entry in reversed(self._beyond(position)):
            try:
                tables = await self._journal.entry_tables(entry)
            except (CorruptJournal, ObjectNotFound):
                continue  # `load` ends the journal before this entry
            for rows in tables:
                if rows.table == "segments":
                    async with session.transaction():
                        await stage(session.connection, rows)
                        found = await session.run("is_last_commit_known")
                    if found:
                        return bool(found[0].is_known)
        return None

    def _beyond(self, position: JournalPosition) -> list[JournalHeader]:
        return [
            entry
            for entry in self.found.entries
            if JournalPosition(epoch=entry.epoch, number=entry.number) > position
        ]

    async def load(self, session: RecoverySession, progress: Progress) -> LoadedJournal:
        """Replaces the log's tables. Call it in a transaction. An unreadable entry ends the journal as if it
        were missing. Raises JournalMismatch or StoreUnavailable, and CorruptJournal or ObjectNotFound for a
        part of the checkpoint."""
        connection, found = session.connection, self.found
        rows, left_out = 0, list[RunLeftOut]()
        await empty(connection)
        async for tables in self._journal.checkpoint_tables(found.checkpoint):
            await load_part(connection, tables)
            rows += sum(one.rows for one in tables)
            progress("Loading the checkpoint (rows)", rows, None)
        await load_sequences(connection, found.checkpoint)
        await connection.execute("ANALYZE partitions, runs, segments")
        for number, entry in enumerate(found.entries, start=1):
            try:
                tables = await self._journal.entry_tables(entry)
            except (CorruptJournal, ObjectNotFound) as error:
                self.found = found = found.cut_before(entry, str(error))
                break
            left_out += await load_entry(connection, entry, tables)
            rows += sum(one.rows for one in tables)
            progress("Loading entries", number, len(found.entries))
        await finish(connection)
        await session.run(
            "note_loaded",
            epoch=found.last.epoch,
            last_entry=self.position.number,
            checkpoint_number=found.checkpoint.number,
            taken_at=self.taken_at,
            producers_at=self.producers_at,
        )
        return LoadedJournal(rows=rows, left_out=left_out)

    @property
    def producers_at(self) -> datetime:
        """The moment of the producers' states: the journal has them less often than the rest."""
        with_producers = [
            entry for entry in self.found.entries if any(s.table == "producer_state" for s in entry.sections)
        ]
        last = with_producers[-1] if with_producers else self.found.checkpoint
        return datetime.fromisoformat(last.taken_at)


async def replay_producers(
    session: RecoverySession,
    store: ObjectStore,
    settings: RecoverySettings,
    since: datetime,
    progress: Progress,
) -> int:
    """Brings producers' states up to the log, from the headers of batches committed since then. Returns how
    many segments were read. It may be repeated."""
    rows = await session.run("committed_since", since=since - _CLOCK_SLACK)
    for start in range(0, len(rows), settings.recovery_requests):
        group = rows[start : start + settings.recovery_requests]
        data = await side_by_side(_data_of(store, row.object_key) for row in group)
        seen = SeenBatches()
        for row, one in zip(group, data, strict=True):
            if one is not None:
                _see(seen, row.segment_id, one, row.outcome)
        await seen.remember(session)
        progress("Reading producers' last batches", start + len(group), len(rows))
    return len(rows)


async def _data_of(store: ObjectStore, key: ObjectKey) -> bytes | memoryview | None:
    try:
        return await store.get(key)
    except ObjectNotFound:
        return None


def _see(seen: SeenBatches, segment_id: SegmentId, data: bytes | memoryview, outcome: Sequence[int]) -> None:
    segment = segment_to_commit(segment_id, data)
    if isinstance(segment, Unreadable):
        return
    batches = segment.batches
    each = decode_outcomes(outcome, len(batches)).each
    for index, one in enumerate(each):
        if isinstance(one, Assigned):
            topic, partition, position = batches.columns[[TOPIC, PARTITION, POSITION], index].tolist()
            key = (batches.topic_ids[topic], Partition(partition))
            seen.add(key, read_header(data, position), one.base_offset)
