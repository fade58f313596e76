"""Reads what goes into the commit journal from this database (docs/design/recovery.md#the-commit-journal;
`docs/journal-format.md`).

Promises:
- One entry is one moment: all of it is read in one REPEATABLE READ transaction.
- Nothing that was committed is left out. A row is new if the snapshot of the entry before does not show the
  transaction that wrote it. So a transaction that commits late is in a later entry, however late. The index
  on `committed_at` bounds the search: marks (a moment, and the next transaction id at it) say how early the
  transactions that were still open can have begun.
- Only the row of the table `journal` is written. Each number is given out once. Of several writers, one goes
  on.
- Tables without an index on what changes are read at most a twentieth of the time.
"""

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from psycopg import AsyncConnection

from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.journal.copied_rows import copy_out
from sequencer.journal.readings import (
    CheckpointNumber,
    CheckpointReading,
    EntryReading,
    FamilyReading,
    JournalMoment,
    JournalState,
    Mark,
    families_text,
    family_of,
    next_marks,
)
from storage.identifiers import SegmentId
from storage.segments.journal_format import Column, CopiedRows

SQL = load_statements("journal")
OF_ANY_TABLE = load_statements("journal_tables")

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "partitions": ("partitions",),
    "producers": ("producer_ids", "producer_state"),
    "groups": ("groups", "group_members", "group_configs", "committed_offsets", "sinks", "sink_batches"),
    "acls": ("acl_changes", "acls", "tenant_changes", "tenants"),
    "quotas": ("quota_changes", "client_quotas"),
    "history": (
        "history_tables",
        "history_partitions",
        "history_raw_ranges",
        "history_jobs",
        "history_files",
        "history_objects",
    ),
    "segments": ("segments",),
}
"""Tables without an index on what changes. A family is read at one moment. Of `segments`: reserved,
doomed."""
CHECKPOINT_TABLES: Final = (
    "cluster",
    "topic_changes",
    "topics",
    "partitions",
    "agents",
    "producer_ids",
    "producer_state",
    "groups",
    "group_members",
    "group_configs",
    "committed_offsets",
    "acl_changes",
    "acls",
    "quota_changes",
    "client_quotas",
    "tenant_changes",
    "tenants",
    "sinks",
    "sink_batches",
    "history_tables",
    "history_partitions",
    "history_raw_ranges",
    "history_jobs",
    "history_files",
    "history_objects",
    "gone_ranges",
    "merge_candidates",
    "segments",
    "tombstones",
    "outcomes",
    "runs",
    "transaction_partitions",
    "aborted_transactions",
)
NOT_IN_THE_JOURNAL: Final = frozenset(
    {
        "migrations",
        "journal",
        "ownership",
        "jobs",
        "holds",
        "dooming",
        "doubts",
        "tenant_usage",
        "tenant_reports",
        "merge_tiers",
        "cleanings",
        "peer_secrets",
        "changed_topics",
        "time_partitions",
        "observation",
        "history_lag",
        "agents_shown",
        "erasures",
        "transactions",
        "transaction_groups",
        "pending_offsets",
        "security",
        "user_credentials",
        "quota_use",
        "topic_keys",
        "key_copies_to_delete",
    }
)
"""Tables about current work, the bucket's owner, counts, observations, recent changes of topics, how far logs
are clean, and producers of transactions, which begin again (docs/design/recovery.md#transactions): a rebuilt
database begins without these rows. Its migration makes new secrets, and an operator adds users again, because
the bucket holds neither. Keys of topics are separate objects in the bucket, so that each can be deleted."""

_PACE: Final = 20.0
"""A family is read again after this many times the duration of its last reading."""
_CLOCK_SLACK: Final = timedelta(seconds=10)
"""How far the database's clock may be set back without a commit being overlooked."""
_LONGEST_COMMIT: Final = timedelta(hours=1)
"""A transaction that commits after the journal began may have begun this long before."""


class Journal:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._columns: dict[str, tuple[Column, ...]] = {}
        self._columns_of = -1
        """The migration that `_columns` belong to."""

    async def state(self) -> JournalState:
        [row] = await self._database.run(SQL["state"])
        return _state_of(row)

    # --- entries

    @asynccontextmanager
    async def read_entry(
        self, state: JournalState, *, most_segments: int, most_batches: int, timeout_s: float
    ) -> AsyncIterator[EntryReading]:
        """Reads what was committed since `state`, in pieces of about `most_batches`. Raises as
        `Database.run`."""
        assert state.snapshot is not None, "there is an entry or a checkpoint to continue"
        async with self._reading(timeout_s) as (connection, moment):
            parameters = {
                "since": state.snapshot,
                "next_xid": moment.next_xid,
                "committed_from": state.marks[0].time - _CLOCK_SLACK,
                "cap": most_segments,
            }
            await connection.execute("SET LOCAL enable_seqscan = off")
            segments = await (await connection.execute(SQL["new_segments"], parameters)).fetchall()
            reading = EntryReading(
                moment=moment,
                state=state,
                segment_count=len(segments),
                is_too_much=len(segments) == most_segments,
                pieces=_nothing(),
                families=dict(state.families),
            )
            reading.pieces = self._entry_pieces(connection, reading, _in_pieces(segments, most_batches))
            yield reading

    async def _entry_pieces(
        self, connection: AsyncConnection[Row], reading: EntryReading, pieces: Iterator[Sequence[SegmentId]]
    ) -> AsyncIterator[Sequence[CopiedRows]]:
        """Yields changed topics, then segments in the order of their commits, then the families that are
        due."""
        moment, state = reading.moment, reading.state
        tables: list[CopiedRows] = []
        changed = {"since": state.snapshot, "next_xid": moment.next_xid}
        if moment.topic_changes != state.topic_changes:
            tables += await self._copied(connection, "topics", SQL["changed_topics"], changed)
            tables += await self._copied(
                connection, "partitions", SQL["partitions_of_changed_topics"], changed
            )
        all_pieces = list(pieces)
        # All in the first entry. If later ones are lost, these transactions are known to be aborted.
        every_id = {"segment_ids": "{" + ",".join(str(one) for piece in all_pieces for one in piece) + "}"}
        if all_pieces:
            tables += await self._copied(
                connection, "aborted_transactions", SQL["aborted_transactions_by_segment"], every_id
            )
        for number, segment_ids in enumerate(all_pieces):
            if number:
                yield tables
                tables = []
            named = {"segment_ids": "{" + ",".join(map(str, segment_ids)) + "}"}
            tables += await self._copied(connection, "segments", SQL["segments_by_id"], named)
            tables += await self._copied(connection, "partitions", SQL["partitions_cut"], named)
            runs = await self._copied(connection, "runs", SQL["runs_by_segment"], named)
            if runs:
                # All that are open: there are few, and their ends delete their rows.
                tables += runs + await self._copied(
                    connection, "transaction_partitions", SQL["open_transactions"], {}
                )
        for family, since in _due(state, moment):
            began_s = time.monotonic()
            await connection.execute(
                "SET LOCAL enable_seqscan = off" if family == "segments" else "SET LOCAL enable_seqscan = on"
            )
            for table in FAMILIES[family]:
                statement = SQL["changed_segments"] if family == "segments" else OF_ANY_TABLE["changed_rows"]
                tables += await self._copied(connection, table, statement, changed | {"since": since})
            reading.families[family] = FamilyReading(
                snapshot=moment.snapshot, read_at=moment.taken_at, took_s=time.monotonic() - began_s
            )
        yield tables

    async def take_number(self, state: JournalState) -> int | None:
        """Returns the number of the next entry. None: another writer continued. Raises as
        `Database.write`."""
        rows = await self._database.write(SQL["take_number"], epoch=state.epoch, last_entry=state.last_entry)
        return rows[0].number if rows else None

    async def confirm_entries(
        self, reading: EntryReading, *, number: int, entries: int, size_bytes: int
    ) -> bool:
        """Call it once all entries of a reading are in the bucket. `number` is the last one's. False: another
        writer continued, and readers ignore these entries. Raises as `Database.run`."""
        moment, state = reading.moment, reading.state
        marks = next_marks(state.marks, moment)
        rows = await self._database.run(
            SQL["confirm_entry"],
            number=number,
            snapshot=moment.snapshot,
            taken_at=moment.taken_at,
            topic_changes=moment.topic_changes,
            mark_times=[mark.time for mark in marks],
            mark_xids=[mark.next_xid for mark in marks],
            families=families_text(reading.families),
            entries=entries,
            size_bytes=size_bytes,
            epoch=state.epoch,
            last_entry=state.last_entry,
        )
        return bool(rows)

    # --- checkpoints

    async def take_checkpoint_number(self) -> CheckpointNumber:
        """Raises as `Database.write`."""
        [row] = await self._database.write(SQL["take_checkpoint_number"])
        return CheckpointNumber(number=row.number, last_entry=row.last_entry, last_number=row.last_number)

    @asynccontextmanager
    async def read_checkpoint(self, *, part_bytes: int, timeout_s: float) -> AsyncIterator[CheckpointReading]:
        """Everything, in pieces of about `part_bytes`. Raises as `Database.run`."""
        async with self._reading(timeout_s) as (connection, moment):
            yield CheckpointReading(moment=moment, pieces=self._checkpoint_pieces(connection, part_bytes))

    async def _checkpoint_pieces(
        self, connection: AsyncConnection[Row], part_bytes: int
    ) -> AsyncIterator[Sequence[CopiedRows]]:
        tables: list[CopiedRows] = []
        size_bytes = 0
        for table in CHECKPOINT_TABLES:
            pieces = copy_out(
                connection,
                table,
                self._columns[table],
                OF_ANY_TABLE["all_rows"],
                {},
                most_bytes=part_bytes,
                is_whole=True,
            )
            async for rows in pieces:
                if tables and size_bytes + len(rows.data) > part_bytes:
                    yield tables
                    tables, size_bytes = [], 0
                tables.append(rows)
                size_bytes += len(rows.data)
        yield tables

    async def confirm_checkpoint(
        self, moment: JournalMoment, *, epoch: int, number: CheckpointNumber, size_bytes: int, begins: bool
    ) -> bool:
        """Call it once the manifest is in the bucket. `begins`: the next entry continues it. False: another
        writer won. Raises as `Database.run`."""
        parameters: dict[str, Any] = {
            "epoch": epoch,
            "number": number.number,
            "taken_at": moment.taken_at,
            "size_bytes": size_bytes,
        }
        if begins:
            parameters |= {
                "system_identifier": moment.system_identifier,
                "timeline": moment.timeline,
                "follows": number.last_number,
                "snapshot": moment.snapshot,
                "topic_changes": moment.topic_changes,
                "mark_times": [moment.taken_at - _LONGEST_COMMIT],
                "mark_xids": [moment.next_xid],
            }
        return bool(
            await self._database.run(SQL["begin_journal" if begins else "confirm_checkpoint"], **parameters)
        )

    async def seconds_behind(self, older_than_s: float) -> float | None:
        """Seconds since the last entry, if something was committed after it and longer ago than
        `older_than_s`."""
        rows = await self._database.run(SQL["unjournaled"], older_than_s=older_than_s)
        return rows[0].age_s if rows and rows[0].is_behind else None

    # --- reading

    @asynccontextmanager
    async def _reading(self, timeout_s: float) -> AsyncIterator[tuple[AsyncConnection[Row], JournalMoment]]:
        async with self._database.connection(answer_timeout_s=timeout_s) as connection:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            try:
                cursor = await connection.execute(SQL["moment"], {"timeout_ms": int(timeout_s * 1000)})
                [row] = await cursor.fetchall()
                moment = _moment_of(row)
                await self._learn_columns(connection, moment.migration)
                yield connection, moment
            finally:
                if not connection.closed:
                    await connection.execute("ROLLBACK")

    async def _learn_columns(self, connection: AsyncConnection[Row], migration: int) -> None:
        if self._columns_of != migration:
            cursor = await connection.execute(SQL["columns"], {"tables": list(CHECKPOINT_TABLES)})
            self._columns = {
                row.table: tuple(
                    Column(name=name, type=kind) for name, kind in zip(row.names, row.types, strict=True)
                )
                for row in await cursor.fetchall()
            }
            self._columns_of = migration

    async def _copied(
        self, connection: AsyncConnection[Row], table: str, statement: str, parameters: Mapping[str, Any]
    ) -> list[CopiedRows]:
        columns = self._columns[table]
        pieces = copy_out(connection, table, columns, statement, parameters, most_bytes=1 << 62)
        return [rows async for rows in pieces if rows.rows]


def _due(state: JournalState, moment: JournalMoment) -> Iterator[tuple[str, str]]:
    """The families to read now, each with the snapshot of its last reading."""
    for family in FAMILIES:
        last = state.families.get(family)
        if last is None:
            assert state.snapshot is not None
            yield family, state.snapshot
        elif (moment.taken_at - last.read_at).total_seconds() >= _PACE * last.took_s:
            yield family, last.snapshot


def _in_pieces(segments: Sequence[Row], most_batches: int) -> Iterator[Sequence[SegmentId]]:
    piece: list[SegmentId] = []
    batches = 0
    for row in segments:
        if piece and batches + row.batches > most_batches:
            yield piece
            piece, batches = [], 0
        piece.append(row.segment_id)
        batches += row.batches
    if piece:
        yield piece


async def _nothing() -> AsyncIterator[Sequence[CopiedRows]]:
    return
    yield


def _moment_of(row: Row) -> JournalMoment:
    return JournalMoment(
        taken_at=row.taken_at,
        snapshot=row.snapshot,
        xmin=row.xmin,
        next_xid=row.next_xid,
        topic_changes=row.topic_changes,
        cluster_id=row.cluster_id,
        migration=row.migration,
        system_identifier=row.system_identifier,
        timeline=row.timeline,
        sequences={"node_ids": row.node_ids, "coordinator_epochs": row.coordinator_epochs},
    )


def _state_of(row: Row) -> JournalState:
    marks = [Mark(time=time, next_xid=xid) for time, xid in zip(row.mark_times, row.mark_xids, strict=True)]
    return JournalState(
        epoch=row.epoch,
        last_number=row.last_number,
        last_entry=row.last_entry,
        snapshot=row.snapshot,
        topic_changes=row.topic_changes,
        marks=tuple(marks),
        families={name: family_of(fields) for name, fields in json.loads(row.families).items()},
        checkpoint_number=row.checkpoint_number,
        checkpoint_bytes=row.checkpoint_bytes,
        entries=row.entries,
        entry_bytes=row.entry_bytes,
        bytes_since_checkpoint=row.entry_bytes - row.checkpoint_entry_bytes,
        age_s=row.taken_age_s,
        checkpoint_age_s=row.checkpoint_age_s,
        is_another_postgres=(row.system_identifier, row.timeline)
        != (row.here_system_identifier, row.here_timeline),
        snapshot_age_xids=row.snapshot_age_xids,
    )
