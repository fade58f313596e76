"""DuckDB over the snapshot that the catalog serves, in this process.

A statement is planned first, against empty tables of the same columns: that tells its errors, the tables it
reads, and by the filters of its plan the files that it may need (`scan_filters.py`). Then it runs over a view
of these files. A column is found by its field id, as Iceberg has it, so files may be older than a column.

Promises:
- Only queries run. Files and the network are closed to statements, and the settings are locked.
- Memory and the temporary directory are bounded by settings. What a killed process left there is removed by
  the next one. Records of encrypted topics are not spilled, and their tails are encrypted there.
- All statements of a call see one snapshot of a table, and one tail of a topic.
"""

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import duckdb

from sequencer.tenants.tenant_names import local_name, prefix_of, tenant_of
from spark_source.settings import SourceSettings
from spark_source.topic_keys import SourceKeys
from storage.encryption.sealed_batches import KEY_BYTES, TopicKey
from storage.identifiers import TopicId, new_key_id
from storage.stores.object_store import ObjectNotFound
from tidelog.sql.bucket_files import SCHEME, BucketFiles, BucketFileSystem
from tidelog.sql.catalog import Catalog, Column, DataFile, Table
from tidelog.sql.engine import NAMESPACE, Answer, NotInDuckDB, StatementFailed
from tidelog.sql.own_directory import OwnDirectory
from tidelog.sql.scan_filters import MayPass, may_pass
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import for_duckdb, quoted, unquoted

_ROWS_PER_BATCH: Final = 10_240
_VECTOR_ROWS: Final = 2_048
"""DuckDB's own batch: smaller ones cost it as much."""
_BATCH_BYTES: Final = 8 << 20
_CATALOG: Final = "tidelog"
_USE: Final = f"USE {_CATALOG}.{NAMESPACE}"
_TEXT: Final = (
    f"CREATE MACRO {_CATALOG}.{NAMESPACE}.text(x BLOB) AS coalesce(try(decode(x)), CAST(x AS VARCHAR)), "
    "(x VARCHAR) AS x, (x) AS CAST(x AS VARCHAR)"
)
_PLAIN_NAME: Final = re.compile(r"\w+")
_LINE: Final = re.compile(r"LINE (\d+): ")
_FOR_SPARK: Final = (
    "Scalar Function with name",
    "Table Function with name",
    "Aggregate Function with name",
    "No function matches",
    "Could not choose a best candidate",
    "Type with name",
    "Cannot compare values of type",
    "not implemented",
    "Unimplemented type for cast",
)
"""What Spark may know, or do by a cast, where DuckDB does not."""
_SYSTEM_SCHEMAS: Final = frozenset({"information_schema", "pg_catalog", "system", "temp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A statement that DuckDB can run."""

    text: str
    """In DuckDB's spelling."""
    tables: tuple[Table, ...]
    files: dict[str, tuple[DataFile, ...]]
    """By the table's name those that may be needed."""
    size_bytes: int
    """Of the columns that are read in these files, or more."""
    fresh: bool
    may_pass: Mapping[str, MayPass] = field(default_factory=dict, repr=False)
    """By the table's name, what says of bounds if a row within them may be needed; without it, all are."""

    @property
    def may_be_encrypted(self) -> bool:
        return any(table.may_be_encrypted for table in self.tables)

    def words(self) -> str:
        """What is read, for people."""
        if not self.tables:
            return "reads no table"
        of = sum(len(table.files) for table in self.tables)
        own = sum(map(len, self.files.values()))
        size = f"at most {_size(self.size_bytes)}" if self.size_bytes else "their footers"
        words = f"reads {own:,} of {of:,} files, {size}"
        return f"{words}, and the newest records" if self.fresh else words


class DuckDBEngine:
    name = "duckdb"

    def __init__(
        self,
        settings: SqlSettings,
        catalog: Catalog,
        files: BucketFiles,
        source: Callable[[], SourceSettings],
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._files = files
        self._source = source
        self._own = OwnDirectory()
        self._directory = self._own.path
        self._stop = threading.Event()
        self._planner: duckdb.DuckDBPyConnection | None = None
        self._planned: dict[str, tuple[Column, ...]] = {}
        """By name the columns that the planner's table has."""
        self._runners: dict[bool, duckdb.DuckDBPyConnection] = {}
        """By whether they run statements over encrypted topics."""
        self._running: duckdb.DuckDBPyConnection | None = None
        self._scans = count()
        self._tails: dict[str, Path] = {}
        self._keys: SourceKeys | None = None
        self._tail_key = TopicKey(TopicId(uuid4()), new_key_id(), os.urandom(KEY_BYTES))
        """Encrypts the tails of encrypted topics on this machine's disk, and is never written."""

    def begin(self) -> None:
        """A call begins: its statements see the newest records as they are now."""
        for path in self._tails.values():
            path.unlink(missing_ok=True)
        self._tails = {}

    def plan(self, text: str, *, fresh: bool) -> Plan:
        """Raises NotInDuckDB if Spark may know better, and StatementFailed."""
        self._stop.clear()
        text = for_duckdb(text)
        planner = self._plan_connection()
        with _ErrorsForPeople(lines_before=0):
            _check_is_query(planner, text)
            names = planner.get_table_names(text, qualified=True)
        with _ErrorsForPeople(lines_before=1):
            tables = {
                table.name: table for table in (self._table(name, fresh=fresh) for name in names) if table
            }
            for table in tables.values():
                self._stand_in(planner, table)
            explained = planner.execute(f"EXPLAIN (FORMAT json)\n{text}").fetchall()
        scans = list(_scans(json.loads(explained[0][1])))
        tests = {name: _test(table, scans) for name, table in tables.items()}
        files = {
            name: tuple(file for file in tables[name].files if test(file.bounds))
            for name, test in tests.items()
        }
        return Plan(
            text=text,
            tables=tuple(tables.values()),
            files=files,
            size_bytes=sum(_read_bytes(tables[name], own, scans) for name, own in files.items()),
            fresh=fresh and bool(tables),
            may_pass=tests,
        )

    def run(self, plan: Plan, reason: str) -> Answer:
        """Raises StatementFailed. The batches are read while the caller takes them."""
        tails = {table.name: self._tail(table) for table in plan.tables} if plan.fresh else {}
        local = {f".fresh/{name}": path for name, path in tails.items()}
        needed = {file.key: file.size_bytes for own in plan.files.values() for file in own}
        self._files.announce(needed, local)
        self._files.failure = None
        self._files.prefetch(needed)
        runner = self._run_connection(may_be_encrypted=plan.may_be_encrypted).cursor()
        self._running = runner
        try:
            with self._errors():
                runner.execute(_USE)
                for table in plan.tables:
                    paths = [str(file.key) for file in plan.files[table.name]]
                    tail = f".fresh/{table.name}" if table.name in tails else None
                    rows = self._rows_of(runner, table, plan)
                    runner.execute(_view(table, paths, tail, rows))
                    _name_in_tenant(runner, table)
                reader = runner.sql(plan.text).to_arrow_reader(_batch_rows(plan))
        except BaseException:
            self._end_run(runner)
            raise
        return Answer(
            engine=self.name, reason=reason, schema=reader.schema, batches=self._batches(runner, reader)
        )

    def cancel(self) -> None:
        self._stop.set()
        running = self._running
        if running is not None:
            running.interrupt()

    def close(self) -> None:
        if self._planner is not None:
            self._planner.close()
        for connection in self._runners.values():
            connection.close()
        self._own.close()

    def _batches(self, runner: duckdb.DuckDBPyConnection, reader: Any) -> Iterator[Any]:
        try:
            with self._errors():
                yield from reader
        finally:
            reader.close()
            self._end_run(runner)

    def _end_run(self, runner: duckdb.DuckDBPyConnection) -> None:
        self._running = None
        with contextlib.suppress(duckdb.Error):
            runner.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with _ErrorsForPeople(lines_before=0):
                yield
        except (StatementFailed, NotInDuckDB) as failed:
            cause = self._files.failure
            if cause is None:
                if isinstance(failed, NotInDuckDB):
                    raise StatementFailed(str(failed)) from None
                raise
            if isinstance(cause, StatementFailed):
                raise cause from None
            if isinstance(cause, ObjectNotFound):
                raise StatementFailed(
                    f"A file of the table is gone ({cause.key}): the snapshot expired while the statement "
                    "ran.",
                    "Run it again: it then reads the newest snapshot. TIDELOG_HISTORY_SNAPSHOT_GRACE_S and "
                    "TIDELOG_HISTORY_READER_GRACE_S say how long files stay.",
                ) from cause
            raise StatementFailed(f"The bucket could not be read: {cause}") from cause

    def _table(self, name: str, *, fresh: bool) -> Table | None:
        """The table of a name as a statement has it; None for one of DuckDB's own."""
        parts = _name_parts(name)
        if (len(parts) > 1 and parts[-2].lower() in _SYSTEM_SCHEMAS) or parts[-1].lower().startswith(
            "duckdb_"
        ):
            return None
        prefix = [part.lower() for part in parts[:-1]]
        if prefix not in ([], [NAMESPACE], [_CATALOG, NAMESPACE]):
            if prefix[0] in (NAMESPACE, _CATALOG):
                tenants = [part for part in prefix[1:] if prefix[0] == _CATALOG]
                if len(tenants) != 1 or not self._catalog.has_tenant(tenants[0]):
                    raise NotInDuckDB(f"{name} is a table that Iceberg's Spark runtime has")
                return self._catalog.table(prefix_of(tenants[0]) + parts[-1], or_topic=fresh)
            if self._catalog.has_tenant(prefix[0]):
                if len(prefix) > 1:
                    raise NotInDuckDB(f"{name} is a table that Iceberg's Spark runtime has")
                return self._catalog.table(prefix_of(prefix[0]) + parts[-1], or_topic=fresh)
            raise StatementFailed(
                f"There is no namespace '{'.'.join(parts[:-1])}'; topics are in '{NAMESPACE}'.",
                f'A name with other signs than letters, digits and _ needs quotes: {NAMESPACE}."a-topic".',
            )
        return self._catalog.table(parts[-1], or_topic=fresh)

    def _tail(self, table: Table) -> Path:
        from tidelog.sql.fresh import write_tail  # decoding needs kernels that history alone does not

        path = self._tails.get(table.name)
        if path is None:
            path = self._directory / f"{len(self._tails)}.parquet"
            try:
                key = self._tail_key if table.may_be_encrypted else None
                write_tail(table, self._source(), self._settings.sql_fresh_bytes, path, self._stop, key)
            except NotInDuckDB as failed:
                raise StatementFailed(f"{failed}.", "Ask Spark: --engine spark.") from None
            self._tails[table.name] = path
        return path

    def _plan_connection(self) -> duckdb.DuckDBPyConnection:
        if self._planner is None:
            planner = _connection({})
            # Of an empty table they would make an empty plan.
            planner.execute("SET disabled_optimizers = 'statistics_propagation,late_materialization'")
            _lock(planner)
            self._planner = planner
        return self._planner

    def _stand_in(self, planner: duckdb.DuckDBPyConnection, table: Table) -> None:
        if self._planned.get(table.name) != table.columns:
            columns = ", ".join(f"{quoted(column.name)} {column.type}" for column in table.columns)
            planner.execute(f"CREATE OR REPLACE TABLE {_full_name(table)} ({columns})")
            _name_in_tenant(planner, table)
            self._planned[table.name] = table.columns

    def _rows_of(
        self, runner: duckdb.DuckDBPyConnection, table: Table, plan: Plan
    ) -> Callable[[Sequence[str]], str]:
        """Returns what makes SQL of paths: the rows of these files."""
        if not table.may_be_encrypted:
            return partial(_rows, table)
        from tidelog.sql.encrypted_scan import encrypted_scan

        if self._keys is None:
            self._keys = SourceKeys(self._source())
        assert table.topic_id is not None, "a table that the catalog served has a topic"
        keyring = self._keys.of_topic(table.topic, table.topic_id, [file.key for file in table.files])
        own = {**keyring.by_id, self._tail_key.key_id: self._tail_key}
        keyring = replace(keyring, by_id=own)
        test = plan.may_pass.get(table.name, lambda _: True)

        def rows(paths: Sequence[str]) -> str:
            if not paths:
                return _rows(table, paths)
            name = f"__scan_{next(self._scans)}"
            runner.register(name, encrypted_scan(table, paths, keyring, test, self._files))
            return f"SELECT * FROM temp.main.{quoted(name)}"

        return rows

    def _run_connection(self, *, may_be_encrypted: bool) -> duckdb.DuckDBPyConnection:
        if may_be_encrypted not in self._runners:
            runner = _connection(
                {
                    "memory_limit": f"{self._settings.sql_memory_bytes}B",
                    # DuckDB cannot encrypt what it spills without an extension from the internet.
                    "temp_directory": "" if may_be_encrypted else str(self._directory / "spill"),
                    "max_temp_directory_size": f"{self._settings.sql_spill_bytes}B",
                }
            )
            runner.register_filesystem(BucketFileSystem(self._files))
            runner.execute("SET parquet_metadata_cache = true")
            runner.execute(f"SET allowed_directories = ['{SCHEME}://']")
            _lock(runner)
            self._runners[may_be_encrypted] = runner
        return self._runners[may_be_encrypted]


def _connection(config: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"python_enable_replacements": False, **config})
    connection.execute(f"ATTACH ':memory:' AS {_CATALOG}")
    connection.execute(f"CREATE SCHEMA {_CATALOG}.{NAMESPACE}")
    connection.execute(_TEXT)
    connection.execute(_USE)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on statements reach neither files nor the network, and change no setting."""
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _check_is_query(planner: duckdb.DuckDBPyConnection, text: str) -> None:
    found = planner.extract_statements(text)
    if len(found) != 1:
        raise StatementFailed("This is not one statement.", "Separate statements by semicolons.")
    kinds = {found[0].type.name}
    if kinds == {"EXPLAIN"}:
        # What it explains would run with ANALYZE.
        inner = re.sub(r"^\s*EXPLAIN\s*(\([^)]*\)|ANALYZE\b)*", "", text, flags=re.IGNORECASE)
        kinds = {statement.type.name for statement in planner.extract_statements(inner)}
    if kinds != {"SELECT"}:
        raise StatementFailed(
            "Only queries run here: SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE and EXPLAIN.",
            "Topics are written by producers, and `--output FILE` writes an answer to a file.",
        )


def _name_parts(name: str) -> list[str]:
    """`topics."a.b" AS x` to its parts."""
    found = re.match(r'(?:"(?:[^"]|"")*"|[^".\s]+)(?:\.(?:"(?:[^"]|"")*"|[^".\s]+))*', name)
    full = found[0] if found else name
    return [unquoted(part) for part in re.findall(r'"(?:[^"]|"")*"|[^".]+', full)]


def _full_name(table: Table) -> str:
    return f"{_CATALOG}.{NAMESPACE}.{quoted(table.name)}"


def _name_in_tenant(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
    """Topic `acme~orders` is also `acme.orders`."""
    tenant = tenant_of(table.name)
    if tenant is not None:
        schema = f"{_CATALOG}.{quoted(tenant)}"
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        connection.execute(
            f"CREATE OR REPLACE VIEW {schema}.{quoted(local_name(table.name))} AS FROM {_full_name(table)}"
        )


def _batch_rows(plan: Plan) -> int:
    """So many that a batch has about `_BATCH_BYTES`, as far as the files tell."""
    files = [file for own in plan.files.values() for file in own]
    row_bytes = max((file.size_bytes // max(file.rows, 1) for file in files), default=1)
    return min(max(_BATCH_BYTES // max(row_bytes, 1), _VECTOR_ROWS), _ROWS_PER_BATCH)


def _view(
    table: Table, paths: Sequence[str], tail: str | None, rows_of: Callable[[Sequence[str]], str]
) -> str:
    """The table's files and its tail. `rows_of` makes SQL of paths. Where the last record of each key counts,
    a record of the tail replaces the table's row of its key, and an earlier one of the tail."""
    if tail is None or not table.has_last_records:
        rows = rows_of([*paths, *([] if tail is None else [tail])])
    else:
        newest = f"({rows_of([tail])})"
        rows = (
            f"SELECT * FROM ({rows_of(paths)}) AS h WHERE NOT EXISTS (SELECT 1 FROM {newest} AS n "
            "WHERE n.partition = h.partition AND n.key = h.key) "
            f"UNION ALL SELECT * FROM (SELECT * FROM {newest} WHERE key IS NOT NULL QUALIFY row_number() "
            'OVER (PARTITION BY partition, key ORDER BY "offset" DESC) = 1) WHERE value IS NOT NULL'
        )
    return f"CREATE OR REPLACE VIEW {_full_name(table)} AS {rows}"


def _rows(table: Table, paths: Sequence[str]) -> str:
    if not paths:
        empty = ", ".join(f"CAST(NULL AS {column.type}) AS {quoted(column.name)}" for column in table.columns)
        return f"SELECT {empty} LIMIT 0"
    columns = ", ".join(
        f"{column.field_id}: {{'name': {_literal(column.name)}, 'type': {_literal(column.type)}, "
        "'default_value': NULL}"
        for column in table.columns
    )
    listed = ", ".join(_literal(f"{SCHEME}://{path}") for path in paths)
    return f"SELECT * FROM read_parquet([{listed}], schema = MAP {{{columns}}})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _scans(plan: Any) -> Iterator[dict[str, Any]]:
    for node in plan:
        extra = node.get("extra_info") or {}
        if "Table" in extra:
            yield extra
        yield from _scans(node.get("children", ()))


def _scans_of(table: Table, scans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [scan for scan in scans if _name_parts(scan["Table"])[-1] == table.name]


def _test(table: Table, scans: Sequence[dict[str, Any]]) -> MayPass:
    """A file is needed if any scan may need it. Of a table without a scan in the plan all are."""
    own = _scans_of(table, scans)
    # A name with signs could be read as a part of a filter.
    if not own or not all(_PLAIN_NAME.fullmatch(column.name) for column in table.columns):
        return lambda _: True
    tests = [may_pass(scan.get("Filters") or []) for scan in own]
    return lambda bounds: any(test(bounds) for test in tests)


def _read_bytes(table: Table, files: Sequence[DataFile], scans: Sequence[dict[str, Any]]) -> int:
    own = _scans_of(table, scans)
    words = set(
        re.findall(r"\w+", json.dumps([[scan.get("Projections"), scan.get("Filters")] for scan in own]))
    )
    ids = {column.field_id for column in table.columns if column.name in words}
    if not own or any(not file.column_bytes for file in files):
        return sum(file.size_bytes for file in files)
    top = {column.field_id for column in table.columns}
    nested = any(column.type.endswith(("[]", ")")) and column.name in words for column in table.columns)
    return sum(
        size
        for file in files
        for number, size in file.column_bytes.items()
        if number in ids or (nested and number not in top)
    )


def _size(size: int) -> str:
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= each:
            return f"{size / each:.1f} {unit}"
    return f"{size} bytes"


class _ErrorsForPeople:
    """DuckDB's errors as StatementFailed, or as NotInDuckDB where Spark may know better."""

    def __init__(self, *, lines_before: int) -> None:
        self._lines_before = lines_before

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, duckdb.Error):
            return
        said = _said(str(error), self._lines_before)
        if isinstance(error, duckdb.ParserException):
            raise NotInDuckDB(said) from error
        if any(words in said for words in _FOR_SPARK):
            raise NotInDuckDB(said) from error
        if isinstance(error, duckdb.PermissionException):
            raise StatementFailed(
                "A statement reads topics alone, no files and no addresses.",
                "Name a topic: FROM topics.flights.",
            ) from error
        if isinstance(error, duckdb.OutOfMemoryException):
            raise StatementFailed(
                said,
                "Give it more with TIDELOG_SQL_MEMORY_BYTES and TIDELOG_SQL_SPILL_BYTES. Encrypted topics "
                "are never spilled to disk.",
            ) from error
        raise StatementFailed(said) from error


def _said(text: str, lines_before: int) -> str:
    """DuckDB's message, with the numbers of the statement's own lines."""
    text = re.sub(r"^[A-Z][\w ]* Error: ", "", text)
    return _LINE.sub(lambda found: f"LINE {max(1, int(found[1]) - lines_before)}: ", text).strip()
