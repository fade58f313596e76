"""`tidelog recover`: makes one log again of a database and a bucket that drifted apart
(docs/design/recovery.md#recover).

Promises:
- No record and no coordinate is written before the ownership is taken. Only migrations come earlier.
- Agents of this database do not serve meanwhile.
- If a recovery is killed at any point, run it again to finish it.
- A rehearsal does the same work on copies. It writes neither into the bucket nor into the database.

Copies the bucket's listing into a table of the database, where SQL compares it with the log. So a million
objects take no memory here.

A store for rehearsals: reads are real, writes do nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from recovery.holes import Holes
from recovery.journal import BucketJournal, replay_producers
from recovery.keys import recover_keys
from recovery.plan import JournalPosition, Side, Source, newer_side, young_since
from recovery.report import RecordsRefused, Report
from recovery.settings import RecoverySettings
from recovery.transactions import abort_open_transactions
from recovery.undelete import Undelete, undelete_for
from recovery.young import YoungSegments
from sequencer.cluster.ownership import Ownership, OwnershipLost
from sequencer.cluster.store_identity import Identity, WrongStore, identity_of
from sequencer.database.database import Database
from sequencer.journal.loading import RunLeftOut
from sequencer.journal.recovery import WRITER, WRITER_BEYOND, ListedObject, RecoverySession
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.segments.keys import is_merged, merged_prefix, segment_id_of, segments_prefix
from storage.stores.object_store import ObjectInfo, ObjectStore, StoreSettings, StoreUnavailable
from storage.stores.side_by_side import side_by_side


async def take_census(
    session: RecoverySession,
    store: ObjectStore,
    cluster: str,
    settings: RecoverySettings,
    on_objects: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Lists all segments. Returns how many uploaded and how many merged ones there are. Calls `on_objects`
    with the count so far. Raises StoreUnavailable."""
    await session.begin_listing()
    page: list[ListedObject] = []
    seen = 0
    async for one in _segments(store, cluster):
        page.append(one)
        if len(page) == settings.recovery_page:
            await session.add_listed(page)
            seen += len(page)
            on_objects(seen)
            page = []
    await session.add_listed(page)
    on_objects(seen + len(page))
    return await session.end_listing()


async def _segments(store: ObjectStore, cluster: str) -> AsyncIterator[ListedObject]:
    for prefix in (segments_prefix(cluster), merged_prefix(cluster)):
        async for info in store.list(prefix):
            segment_id = segment_id_of(info.key)
            if segment_id is not None:
                yield ListedObject(
                    segment_id=segment_id,
                    object_key=info.key,
                    size_bytes=info.size_bytes,
                    modified_at=info.modified_at,
                    is_merged=is_merged(info.key),
                )


class ReadOnlyStore:
    """The methods of `ObjectStore` that recovery uses."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.get = store.get
        self.head = store.head
        self.probe = store.probe
        self.close = store.close
        self.get_tagged = store.get_tagged

    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None:
        """Does nothing."""

    async def put_if(self, key: ObjectKey, chunks: Sequence[Buffer], tag: str | None) -> None:
        """Does nothing."""

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Does nothing."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)


BEING_RECOVERED: Final = "this database is being recovered; run `tidelog recover` to its end"
RATCHETS_WAITED: Final = 2


class CannotRecover(Exception):
    """There is nothing to recover from, or the operator must decide. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to recover. `progress` is called with (what is done, how much, of how much; None: unknown)."""

    database_url: str
    store_url: str
    cluster: str
    take_over: bool = False
    settings: RecoverySettings
    store_settings: StoreSettings
    sequencer_settings: SequencerSettings
    migration_settings: MigrationSettings
    progress: Callable[[str, int, int | None], None] = lambda _what, _done, _of: None


async def rehearse(task: Task, store: ObjectStore) -> Report:
    """Reports what `recover` would do. Writes nothing. Raises as `recover`, except errors of the
    ownership."""
    timeout_s = task.settings.recovery_statement_timeout_s
    async with RecoverySession.rehearse(task.database_url, statement_timeout_s=timeout_s) as session:
        return await _Recovery(task, session, ReadOnlyStore(store)).run()


async def recover(task: Task, store: ObjectStore) -> Report:
    """Recovers. Raises CannotRecover, RecoveryAtWork, OwnershipLost, OwnershipUnconfirmed, WrongStore,
    SequencerUnavailable or StoreUnavailable; in each case it may be run again."""
    await migrate(task.database_url, task.migration_settings)
    timeout_s = task.settings.recovery_statement_timeout_s
    async with (
        RecoverySession.open(task.database_url, statement_timeout_s=timeout_s) as session,
        _opened(task) as database,
    ):
        recovery = _Recovery(task, session, store)
        await recovery.check_place()
        ownership = Ownership(database)
        await _take(task, ownership, store)
        report = await recovery.run()
        await ownership.resume()
        return report


@asynccontextmanager
async def _opened(task: Task) -> AsyncIterator[Database]:
    database = Database(task.database_url, task.sequencer_settings)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def _take(task: Task, ownership: Ownership, store: ObjectStore) -> None:
    """Returns once this database owns the bucket and no agent of another database writes into it any more."""
    state = await ownership.state()
    # The row's pace is better than a default: the former owner had the same pace before the two databases
    # parted.
    is_told = "ownership_ratchet_s" in task.settings.model_fields_set or not state.ratchets
    ratchet_s = task.settings.ownership_ratchet_s if is_told else state.ratchet_s
    alive_age_s = state.confirmed_age_s
    if task.take_over:
        taken = await ownership.take_over(
            store, task.cluster, ratchet_s=ratchet_s, stopped_because=BEING_RECOVERED
        )
        alive_age_s = taken.before_age_s
    else:
        if state.lost_because != BEING_RECOVERED:
            try:
                await ownership.check_object(store, task.cluster)
            except OwnershipLost as lost:
                raise CannotRecover(
                    f"{lost}. If this database is to own the bucket from now on, stop the other one and run"
                    " `tidelog recover --take-over`"
                ) from lost
        await ownership.stop(BEING_RECOVERED)
    if alive_age_s is not None and alive_age_s < RATCHETS_WAITED * ratchet_s:
        await _wait(RATCHETS_WAITED * ratchet_s, task.progress)


async def _wait(wait_s: float, progress: Callable[[str, int, int | None], None]) -> None:
    """Waits: a former owner that is alive notices within this time."""
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < wait_s:
        progress("Waiting until a former owner has noticed (s)", int(passed_s), int(wait_s))
        await asyncio.sleep(min(1.0, wait_s - passed_s))


class _Recovery:
    def __init__(self, task: Task, session: RecoverySession, store: ObjectStore) -> None:
        self._task = task
        self._settings = task.settings
        self._session = session
        self._store = store
        self._report = Report(cluster=task.cluster, is_rehearsal=session.is_rehearsal)
        self._complete_at: datetime | None = None
        """Everything committed before is in the log; None: nothing is certain to be."""

    async def check_place(self) -> Identity | None:
        """Raises CannotRecover or WrongStore if this is the bucket of another cluster."""
        database = await self._session.row("cluster")
        identity = await identity_of(self._store, self._task.cluster)
        if identity is not None and database.has_topics and identity.cluster_id != database.cluster_id:
            raise WrongStore(
                f"{self._task.store_url} under {self._task.cluster}/ belongs to cluster "
                f"{identity.cluster_id}, and the"
                f" database is that of cluster {database.cluster_id}: set TIDELOG_DATABASE_URL or "
                "TIDELOG_STORE_URL"
            )
        return identity

    async def run(self) -> Report:
        report, progress = self._report, self._task.progress
        identity = await self.check_place()
        for row in await self._session.run("partitions"):
            change = report.of((row.topic_id, row.partition))
            change.name, change.high_watermark_before = f"{row.name}/{row.partition}", row.high_watermark
        with self._timed("journal"):
            await self._read_log(identity)
        with self._timed("keys"):
            await recover_keys(self._session, self._store, self._task.cluster, self._settings, report)
        with self._timed("listing"):
            report.uploaded_objects, report.merged_objects = await take_census(
                self._session,
                self._store,
                self._task.cluster,
                self._settings,
                lambda seen: progress("Listing objects", seen, None),
            )
        holes = Holes(self._session, self._store, self._task.cluster, self._settings, report)
        with self._timed("missing objects"):
            await self._session.run("find_missing")
            await self._session.run("leave_to_history")
            await self._undelete()
            await holes.fill(progress)
        with self._timed("young segments"):
            young = YoungSegments(self._session, self._store, self._settings, report, holes.adopted_batches)
            since = young_since(self._complete_at, self._settings.recovery_young_margin_s)
            await young.append(since, lambda done, of: progress("Appending young segments", done, of))
        await self._finish()
        return report

    async def _read_log(self, identity: Identity | None) -> None:
        """Decides which side is newer. If it is the journal, it replaces the database's log."""
        report, session = self._report, self._session
        journal = await BucketJournal.find(self._store, self._task.cluster)
        row = await session.row("journal_side", writer=WRITER, beyond=WRITER_BEYOND)
        # A bucket with only the first checkpoint is ahead of a database that never knew of one.
        number = row.last_entry if row.has_begun else -1
        database = Side(position=JournalPosition(epoch=row.epoch, number=number), known_at=row.known_at)
        bucket = None if journal is None else Side(position=journal.position, known_at=journal.taken_at)
        report.database_position = database.position if row.has_begun else None
        if journal is None:
            report.source = Source.DATABASE
        else:
            report.source = newer_side(
                database,
                bucket,
                passes_beyond=journal.passes_beyond(database.position),
                knows_last_commit=await journal.is_last_commit_known(session, database.position),
            )
        if journal is not None:
            report.bucket_position, report.journal_faults = journal.position, journal.found.faults
        if report.source is Source.JOURNAL:
            assert journal is not None
            await self._load(journal)
        else:
            # Agents may have worked on a restored database before they found that it had lost the bucket.
            times = (row.known_at, None if journal is None else journal.taken_at)
            report.last_entry_at = min((time for time in times if time is not None), default=None)
            self._complete_at = report.last_entry_at
        producers_since = (
            await session.row("journal_side", writer=WRITER, beyond=WRITER_BEYOND)
        ).recovering_producers_since
        if producers_since is not None:
            await replay_producers(session, self._store, self._settings, producers_since, self._task.progress)
        await self._check_log(identity)

    async def _load(self, journal: BucketJournal) -> None:
        report, session = self._report, self._session
        async with session.transaction():
            loaded = await journal.load(session, self._task.progress)
        report.bucket_position, report.journal_faults = journal.position, journal.found.faults
        report.journal_rows, report.last_entry_at = loaded.rows, journal.taken_at
        self._complete_at = journal.complete_at
        for run in loaded.left_out:
            self._refuse_run(run)
        await session.connection.execute("ANALYZE segments")
        await session.connection.execute("ANALYZE runs")
        for row in await session.run("partitions"):
            report.of((row.topic_id, row.partition)).name = f"{row.name}/{row.partition}"

    def _refuse_run(self, run: RunLeftOut) -> None:
        change = self._report.of((run.topic_id, run.partition))
        change.name = f"{run.topic or run.topic_id}/{run.partition}"
        records = run.last_offset - run.base_offset + 1
        change.refused += records
        what_is_missing = "what lies before it" if run.is_partition_known else "its partition"
        self._report.refuse(
            RecordsRefused(
                what=f"{change.name} [{run.base_offset}, {run.last_offset}]",
                reason=f"{what_is_missing} is in no entry of the journal",
                records=records,
            ),
            self._settings.recovery_listed,
        )

    async def _check_log(self, identity: Identity | None) -> None:
        """Raises CannotRecover if there is no log at all."""
        report, session = self._report, self._session
        database = await session.row("cluster")
        if not database.has_topics and database.store_id is None:
            raise CannotRecover(
                f"the database is empty and {self._task.store_url} holds no journal under "
                f"{self._task.cluster}/:"
                " restore a backup of the database first, or correct TIDELOG_STORE_URL or TIDELOG_CLUSTER"
            )
        if (
            identity is not None
            and database.store_id != identity.store_id
            and report.source is Source.JOURNAL
        ):
            await session.run(
                "adopt_identity",
                cluster_id=identity.cluster_id,
                store_id=identity.store_id,
                store_name=f"{self._task.store_url} under {self._task.cluster}/",
            )

    async def _undelete(self) -> None:
        missing = await self._session.run("missing_objects")
        self._report.missing_objects = len(missing)
        if not missing or not self._settings.recovery_undelete:
            return
        versions: Undelete = undelete_for(
            self._task.store_url, self._task.store_settings, changes_bucket=not self._session.is_rehearsal
        )
        if not await versions.is_possible():
            return
        size = self._settings.recovery_requests
        for start in range(0, len(missing), size):
            group = missing[start : start + size]
            back = await side_by_side(
                versions.undelete(ObjectKey(row.object_key), row.size_bytes) for row in group
            )
            for row, is_back in zip(group, back, strict=True):
                if is_back:
                    self._report.undeleted_objects += 1
                    await self._session.run(
                        "found_again",
                        segment_id=row.segment_id,
                        object_key=row.object_key,
                        size_bytes=row.size_bytes,
                        is_merged=is_merged(ObjectKey(row.object_key)),
                    )
            self._task.progress("Undeleting objects", start + len(group), len(missing))

    async def _finish(self) -> None:
        """Replaces what agents must not use again: leases, cached coordinates, numbers that were given
        out."""
        session, margin = self._session, self._settings.recovery_sequence_margin
        async with session.transaction():
            await abort_open_transactions(session, self._report, self._settings.recovery_listed)
            self._report.leftovers = (await session.row("doom_leftovers", writer=WRITER)).doomed
            await session.run("forget_gone_ranges")
            await session.run("end_writing", writer=WRITER, beyond=WRITER_BEYOND)
            await session.run("end_journal_loading")
            await session.run("raise_partition_epochs")
            await session.run("drop_workers")
            await session.run("jump_sequences", margin=margin)
            await session.run("jump_producer_ids", margin=margin)
            await session.run("fence_coordinators")
        for row in await session.run("partitions"):
            change = self._report.of((row.topic_id, row.partition))
            change.name, change.high_watermark_after = f"{row.name}/{row.partition}", row.high_watermark

    @contextmanager
    def _timed(self, step: str):  # type: ignore[no-untyped-def]
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._report.seconds[step] = time.monotonic() - began_s


__all__ = ["BEING_RECOVERED", "CannotRecover", "StoreUnavailable", "Task", "recover", "rehearse"]
