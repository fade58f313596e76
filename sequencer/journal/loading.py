"""Loads checkpoints and entries of the journal into a database (docs/design/recovery.md#recover).

Promises:
- Loading may be repeated: an entry that was loaded before changes nothing.
- Runs leave no gap. A run is added where its partition ends. A run that ends no later is already known. A run
  that begins earlier and ends later (it was merged since) replaces the runs that it covers. A run that begins
  after the end of its partition is left out and returned, and so is a run of a partition that no entry has.
- A partition's high watermark, size and timestamps follow from its runs, never from a row that is ahead of
  them.

The caller makes sure that nothing else writes to this database meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection, sql

from sequencer.database.named_sql import load_statements
from sequencer.journal.copied_rows import copy_in
from sequencer.journal.journal import CHECKPOINT_TABLES
from sequencer.journal.reading import JournalFound, JournalInBucket
from storage.identifiers import Offset, Partition, TopicId
from storage.segments.journal_format import CopiedRows, JournalHeader

SQL = load_statements("journal_loading")

_SEQUENCES: Final = frozenset({"node_ids", "coordinator_epochs"})
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": ("only_row",),
    "topic_changes": ("only_row",),
    "topics": ("topic_id",),
    "partitions": ("topic_id", "partition"),
    "agents": ("node_id",),
    "producer_ids": ("only_row",),
    "producer_state": ("topic_id", "partition", "producer_id"),
    "groups": ("group_id",),
    "group_members": ("group_id", "member_id"),
    "group_configs": ("group_id",),
    "committed_offsets": ("group_id", "topic_id", "partition"),
    "acl_changes": ("only_row",),
    "acls": ("acl_key",),
    "quota_changes": ("only_row",),
    "client_quotas": ("entity",),
    "tenant_changes": ("only_row",),
    "tenants": ("name",),
    "sinks": ("sink_name",),
    "sink_batches": ("sink_name", "query_id"),
    "history_tables": ("topic_id",),
    "history_partitions": ("topic_id", "partition"),
    "history_raw_ranges": ("topic_id", "partition", "base_offset"),
    "history_jobs": ("job_id",),
    "history_files": ("object_key",),
    "history_objects": ("object_key",),
    "gone_ranges": ("topic_id", "partition", "base_offset"),
    "merge_candidates": ("segment_id",),
    "segments": ("segment_id",),
    "runs": ("topic_id", "partition", "base_offset"),
    "transaction_partitions": ("producer_id", "topic_id", "partition"),
    "aborted_transactions": ("topic_id", "partition", "last_offset"),
}
IN_TIME_PARTITIONS: Final = ("tombstones", "outcomes")
"""The partitions of the lost database do not exist here. The rows go into a current one, and their time
begins again."""
_LOADED_LAST: Final = ("partitions", "runs")
"""In this order: a partition needs its topic, and a run needs the end of its partition."""
_ORDERS: Final = {
    "topics": " ORDER BY deleted_at IS NULL",
    "history_jobs": " ORDER BY state = 'running'",
}
"""Rows that free a value of a unique index come before the rows that take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLeftOut:
    """A run of an entry, `[base_offset, last_offset]`, that has no place in the log."""

    topic_id: TopicId
    topic: str | None
    """The topic's name; None: no loaded entry has the topic."""
    partition: Partition
    base_offset: Offset
    last_offset: Offset
    is_partition_known: bool
    """True: no loaded entry has what comes before the run. False: none has the partition."""


class JournalMismatch(Exception):
    """The journal was written by a newer Tidelog, or holds a table that this one does not know."""


async def rebuild(
    connection: AsyncConnection[Any], journal: JournalInBucket, found: JournalFound
) -> list[RunLeftOut]:
    """Replaces the whole log of this database by what was found, in the caller's transaction. Returns what
    could not be added. Raises JournalMismatch, CorruptJournal, ObjectNotFound or StoreUnavailable."""
    await empty(connection)
    async for tables in journal.checkpoint_tables(found.checkpoint):
        await load_part(connection, tables)
    await load_sequences(connection, found.checkpoint)
    await connection.execute("ANALYZE partitions, runs, segments")
    left_out: list[RunLeftOut] = []
    for entry in found.entries:
        left_out += await load_entry(connection, entry, await journal.entry_tables(entry))
    await finish(connection)
    return left_out


async def empty(connection: AsyncConnection[Any]) -> None:
    """Removes the whole log from this database; a checkpoint is loaded next. In the caller's transaction."""
    tables = sql.SQL(", ").join(sql.Identifier(table) for table in CHECKPOINT_TABLES)
    await connection.execute(sql.SQL("TRUNCATE {}").format(tables))


async def load_part(connection: AsyncConnection[Any], tables: Iterable[CopiedRows]) -> None:
    """Loads one part of a checkpoint, into tables that do not have its rows yet. Raises JournalMismatch."""
    for rows in tables:
        if rows.table not in CHECKPOINT_TABLES:
            raise JournalMismatch(
                f"the checkpoint holds a table {rows.table}, which this Tidelog does not know"
            )
        if rows.table in IN_TIME_PARTITIONS:
            await stage(connection, rows)
            await _execute(connection, "make_time_partitions", f"add_{rows.table}")
        else:
            await copy_in(connection, rows)


async def load_sequences(connection: AsyncConnection[Any], header: JournalHeader) -> None:
    """Sets the sequences so that they give out higher values than the journal knows."""
    for name, value in header.sequences.items():
        if name not in _SEQUENCES:
            raise JournalMismatch(f"the journal holds a sequence {name}, which this Tidelog does not know")
        if value > 0:
            statement = sql.SQL(
                "SELECT setval({name}, greatest(%s, CASE WHEN is_called THEN last_value ELSE 0 END)) "
                "FROM {sequence}"
            )
            named = statement.format(name=sql.Literal(name), sequence=sql.Identifier(name))
            await connection.execute(named, (value,))


async def load_entry(
    connection: AsyncConnection[Any], header: JournalHeader, tables: Sequence[CopiedRows]
) -> list[RunLeftOut]:
    """Loads one entry, in the caller's transaction. Returns what could not be added. Raises
    JournalMismatch."""
    left_out: list[RunLeftOut] = []
    if any(rows.table == "runs" for rows in tables):
        # An entry with runs has all open transactions. What it does not have has ended.
        await _execute(connection, "remove_open_transactions")
    for rows in sorted(
        tables, key=lambda rows: _LOADED_LAST.index(rows.table) if rows.table in _LOADED_LAST else -1
    ):
        if rows.table not in KEYS:
            raise JournalMismatch(f"the entry holds a table {rows.table}, which this Tidelog does not know")
        await stage(connection, rows)
        if rows.table == "partitions":
            await _execute(connection, "add_partitions", "advance_log_starts", "remove_runs_before_log_start")
        elif rows.table == "runs":
            left_out += await _add_runs(connection, rows)
        else:
            await _replace(connection, rows)
    await load_sequences(connection, header)
    return left_out


async def finish(connection: AsyncConnection[Any]) -> None:
    """Call it after the last entry: computes what follows from all rows together. In the caller's
    transaction."""
    await _execute(
        connection,
        "set_sizes",
        "open_aborted_without_marker",
        "remove_aborted_without_marker",
        "remove_offsets_without_group",
        "remove_members_without_group",
        "forget_tombstones",
        "pass_topic_changes",
        "count_time_partitions",
    )


async def stage(connection: AsyncConnection[Any], rows: CopiedRows) -> None:
    """Copies the rows into `staged`, a temporary table of this transaction."""
    await _execute(connection, "drop_staged")
    create = sql.SQL("CREATE TEMP TABLE staged (LIKE {} INCLUDING DEFAULTS) ON COMMIT DROP")
    await connection.execute(create.format(sql.Identifier(rows.table)))
    await copy_in(connection, rows, into="staged")
    await connection.execute("ANALYZE staged")


async def _execute(connection: AsyncConnection[Any], *statements: str) -> None:
    for statement in statements:
        await connection.execute(SQL[statement])


async def _replace(connection: AsyncConnection[Any], rows: CopiedRows) -> None:
    keys = KEYS[rows.table]
    others = [column.name for column in rows.columns if column.name not in keys]
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
    )
    columns = _names(rows)
    if rows.table == "topics":
        await _execute(connection, "delete_topics_of_taken_names")
    statement = sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM staged{order}"
        " ON CONFLICT ({keys}) DO UPDATE SET {changes}"
    )
    await connection.execute(
        statement.format(
            table=sql.Identifier(rows.table),
            columns=columns,
            order=sql.SQL(_ORDERS.get(rows.table, "")),
            keys=sql.SQL(", ").join(map(sql.Identifier, keys)),
            changes=changes,
        )
    )


async def _add_runs(connection: AsyncConnection[Any], rows: CopiedRows) -> list[RunLeftOut]:
    await _execute(connection, "drop_added", "add_runs", "analyze_added")
    await _execute(connection, "remove_covered_runs")
    await connection.execute(sql.SQL(SQL["insert_runs"]).format(columns=_names(rows)))
    await _execute(connection, "advance_high_watermarks")
    cursor = await connection.execute(SQL["runs_left_out"])
    return [
        RunLeftOut(
            topic_id=topic_id,
            topic=topic,
            partition=partition,
            base_offset=base_offset,
            last_offset=last_offset,
            is_partition_known=is_known,
        )
        for topic_id, topic, partition, base_offset, last_offset, is_known in await cursor.fetchall()
    ]


def _names(rows: CopiedRows) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in rows.columns)
