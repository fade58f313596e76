"""Spark over the same snapshots, for what is too large for DuckDB or needs Spark's dialect.

Each table that a statement names is a temporary view of its snapshot, so that all statements of a call see
the same records. With `--fresh` the view is a union with Spark's data source, from the offsets at which the
snapshot ends to the high watermark of the call.

Promises:
- Only queries run. A statement that would write, change a setting or read a path is refused.
- A large answer comes a part at a time: Spark's driver holds one partition of it.
"""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import desc, row_number

from spark_compaction.java import JavaMissing
from spark_compaction.session import CATALOG, SparkUnavailable, make_active, spark_session, stop_spark
from spark_compaction.sql import causes, without_stack
from spark_source.agents import Agents
from spark_source.settings import SourceSettings
from tidelog.errors import UserError
from tidelog.sql.catalog import Catalog, Table
from tidelog.sql.encrypted_source import NAME as ENCRYPTED
from tidelog.sql.encrypted_source import SCAN, EncryptedTable, TableScan
from tidelog.sql.engine import NAMESPACE, Answer, NotInDuckDB, StatementFailed
from tidelog.sql.own_directory import OwnDirectory
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import (
    Statement,
    for_spark,
    named_tables,
    quoted,
    significant,
    tokens_of,
    unquoted,
)

_GROUP: Final = "tidelog-sql"
_PLACE: Final = "__place"
_BATCH: Final = "batch"
_QUERY_LOGGER: Final = "SQLQueryContextLogger"
"""PySpark logs a failed query with its whole Java stack; the error itself says the same in a line."""
_COMMAND: Final = "org.apache.spark.sql.catalyst.plans.logical.Command"
_READ_COMMANDS: Final = ("Show", "Describe", "Explain", "ListCatalogs", "ListTables")
_METADATA_TABLES: Final = frozenset(
    {
        *(
            "snapshots",
            "history",
            "files",
            "manifests",
            "entries",
            "partitions",
            "refs",
            "metadata_log_entries",
        ),
        *("data_files", "delete_files", "all_files", "all_data_files", "all_manifests", "all_entries"),
    }
)


class SparkEngine:
    name = "spark"

    def __init__(self, settings: SqlSettings, catalog: Catalog, source: Callable[[], SourceSettings]) -> None:
        self._settings = settings
        self._catalog = catalog
        self._source = source
        self._session: SparkSession | None = None
        self._own: OwnDirectory | None = None
        self._views: dict[tuple[str, bool], int | None] = {}
        """By name and freshness the snapshot of the view that the session has."""

    def begin(self) -> None:
        """A call begins."""
        self._views = {}

    def run(self, statement: Statement, reason: str, *, fresh: bool, most_rows: int | None) -> Answer:
        """Of `most_rows` one more is read, so that the caller knows if there are more. Raises
        StatementFailed.
        """
        session = self._start()
        with _ErrorsForPeople(self._catalog):
            text = self._with_views(session, statement.text, fresh=fresh)
            _check_is_query(session, text)
            session.sparkContext.setJobGroup(_GROUP, "tidelog sql", interruptOnCancel=True)
            frame = session.sql(text)
            if most_rows is not None:
                found = frame.limit(most_rows + 1).toArrow()
                return Answer(
                    engine=self.name, reason=reason, schema=found.schema, batches=iter(found.to_batches())
                )
            schema, batches = _streamed(frame)
        return Answer(engine=self.name, reason=reason, schema=schema, batches=self._checked(batches))

    def cancel(self) -> None:
        if self._session is not None:
            self._session.sparkContext.cancelJobGroup(_GROUP)

    def close(self) -> None:
        if self._session is not None:
            stop_spark()
        if self._own is not None:
            self._own.close()

    def _checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _ErrorsForPeople(self._catalog):
            yield from batches

    def _start(self) -> SparkSession:
        if self._session is None:
            PySparkLogger.getLogger(_QUERY_LOGGER).disabled = True
            try:
                session = spark_session(self._settings, _iceberg_login(self._settings))
            except (JavaMissing, SparkUnavailable) as failed:
                raise UserError(str(failed)) from None
            session.conf.set("spark.sql.runSQLOnFiles", "false")
            session.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")  # as in DuckDB
            session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            self._session = session
        make_active(self._session)  # each statement has a thread
        return self._session

    def _with_views(self, session: SparkSession, text: str, *, fresh: bool) -> str:
        """The statement over views of snapshots, where it names tables of the catalog."""
        known = self._catalog.names()
        if _needs_catalog(text, known):
            if fresh:
                raise StatementFailed(
                    "Neither a table's past nor its metadata have newest records.", "Leave out --fresh."
                )
            return text
        if fresh:
            known = list({*known, *(topic["name"] for topic in self._catalog.topics())})
            _refuse_names_in_tenants(text, known)
        names = named_tables(text, known)
        for name in names:
            self._view(session, name, fresh=fresh)
        return for_spark(text, names, NAMESPACE)

    def _view(self, session: SparkSession, name: str, *, fresh: bool) -> None:
        if (name, fresh) in self._views:
            return
        try:
            table = self._catalog.table(name, or_topic=fresh)
        except NotInDuckDB:
            if fresh:
                raise StatementFailed(
                    f"The table '{name}' has too many files for --fresh.", "Leave out --fresh."
                ) from None
            frame = session.table(_full_name(name))
            self._views[name, fresh] = None
        else:
            history = self._history(session, table)
            tail = self._tail(session, table) if fresh or history is None else None
            if tail is not None and table.has_last_records:
                history, tail = _without_replaced(history, tail), _last_records(tail)
            frame = _union(history, tail)
            self._views[name, fresh] = table.snapshot_id
        frame.createOrReplaceTempView(quoted(name, "`"))

    def _tail(self, session: SparkSession, table: Table) -> DataFrame:
        source = self._source()
        ends = table.ends()
        partitions = Agents(source).topic(table.topic).partitions
        start = {
            p: min(max(ends.get(p, 0), own.first_offset), own.end_offset) for p, own in partitions.items()
        }
        end = {p: own.end_offset for p, own in partitions.items()}
        options = {
            "topic": table.topic,
            "startingOffsets": json.dumps({table.topic: start}),
            "endingOffsets": json.dumps({table.topic: end}),
            "failOnDataLoss": "false",
            **_options(source),
        }
        return session.read.format("tidelog").options(**options).load()

    def _history(self, session: SparkSession, table: Table) -> DataFrame | None:
        """The table at its snapshot; None for a topic without history."""
        if table.snapshot_id is None:
            return None
        at = session.read.option("versionAsOf", str(table.snapshot_id)).table(_full_name(table.name))
        if not table.may_be_encrypted:
            return at
        assert table.topic_id is not None, "a table that the catalog served has a topic"
        scan = TableScan(topic=table.topic, topic_id=table.topic_id, columns=table.columns, files=table.files)
        self._own = self._own or OwnDirectory()
        path = self._own.path / f"{table.topic_id}-{table.snapshot_id}"
        path.write_bytes(pickle.dumps(scan))
        session.dataSource.register(EncryptedTable)
        options = {**_options(self._source()), SCAN: str(path)}
        return session.read.format(ENCRYPTED).schema(at.schema).options(**options).load()


def _refuse_names_in_tenants(text: str, known: Iterable[str]) -> None:
    """A view has no namespace: `acme.orders` would be read from the catalog, without its newest records."""
    own = significant(tokens_of(text, backslash_escapes=True))
    pairs = {
        f"{unquoted(first.text)}~{unquoted(third.text)}".lower()
        for first, second, third in zip(own, own[1:], own[2:], strict=False)
        if second.says(".")
    }
    for name in known:
        if name.lower() in pairs:
            raise StatementFailed(
                "Spark reads the newest records of a tenant's topic by its full name.",
                f"Say {NAMESPACE}.{quoted(name, '`')}.",
            )


def _needs_catalog(text: str, known: Iterable[str]) -> bool:
    """True if the statement says itself which snapshot (`VERSION AS OF 1`), or reads a metadata table
    (`topics.flights.files`): a view has neither.
    """
    own = significant(tokens_of(text, backslash_escapes=True))
    tables = {name.lower() for name in known}
    return any(
        (second.says("as") and third.says("of"))
        or (
            unquoted(first.text).lower() in tables
            and second.says(".")
            and unquoted(third.text).lower() in _METADATA_TABLES
        )
        for first, second, third in zip(own, own[1:], own[2:], strict=False)
    )


def _iceberg_login(settings: SqlSettings) -> dict[str, str]:
    """Returns the properties of Iceberg's REST catalog that log it in. Spark redacts both secrets by their
    names wherever it shows its configuration (spark.redaction.regex).
    """
    if settings.http_token is not None:
        # The catalog renews its own tokens, and not those of a provider.
        return {"token": settings.http_token.get_secret_value().strip(), "token-refresh-enabled": "false"}
    if settings.http_user and settings.http_password is not None:
        return {
            "rest.auth.type": "basic",
            "rest.auth.basic.username": settings.http_user,
            "rest.auth.basic.password": settings.http_password.get_secret_value(),
        }
    return {}


def _full_name(name: str) -> str:
    return f"{CATALOG}.{NAMESPACE}.{quoted(name, '`')}"


def _options(source: SourceSettings) -> dict[str, str]:
    """How the data sources reach agents, the bucket and the provider of keys."""
    options = {
        "servers": source.http_url,
        "storeUrl": source.store_url,
        "s3Region": source.s3_region,
        "encryptionProvider": source.encryption_provider,
        "encryptionKey": source.encryption_key,
        "encryptionKmsRegion": source.encryption_kms_region,
    }
    if source.encryption_kms_endpoint is not None:
        options["encryptionKmsEndpoint"] = source.encryption_kms_endpoint
    if source.s3_access_key is not None and source.s3_secret_key is not None:
        options["s3AccessKey"] = source.s3_access_key
        options["s3SecretKey"] = source.s3_secret_key.get_secret_value()
    return options


def _union(history: DataFrame | None, tail: DataFrame | None) -> DataFrame:
    """What there is of the two. Columns that only history has are null in the tail."""
    if history is None or tail is None:
        found = tail if history is None else history
        assert found is not None, "a table without a snapshot has a tail"
        return found
    return history.unionByName(tail, allowMissingColumns=True)


def _without_replaced(history: DataFrame | None, tail: DataFrame) -> DataFrame | None:
    """The rows of whose key the tail has no record."""
    if history is None:
        return None
    return history.join(tail, ["partition", "key"], "left_anti").select(*history.columns)


def _last_records(tail: DataFrame) -> DataFrame:
    """The last record of each key, unless that is a tombstone."""
    newest_first = Window.partitionBy("partition", "key").orderBy(desc("offset"))
    ranked = tail.where("key IS NOT NULL").withColumn(_PLACE, row_number().over(newest_first))
    return ranked.where(f"{_PLACE} = 1 AND value IS NOT NULL").drop(_PLACE)


def _check_is_query(session: SparkSession, text: str) -> None:
    """Raises StatementFailed for a statement that does more than read. Spark runs commands when it is given
    them, so this looks at the parsed statement.
    """
    jvm: Any = session._jvm
    command = jvm.java.lang.Class.forName(_COMMAND)
    waiting = [session._jsparkSession.sessionState().sqlParser().parsePlan(text)]
    while waiting:
        node = waiting.pop()
        name = str(node.getClass().getSimpleName())
        does_more = command.isInstance(node) or name.startswith("Insert")
        if does_more and not name.startswith(_READ_COMMANDS):
            raise StatementFailed(
                "Only queries run here: SELECT, WITH, FROM, VALUES, SHOW, DESCRIBE and EXPLAIN.",
                "Topics are written by producers, and `--output FILE` writes an answer to a file.",
            )
        children = node.children()
        waiting += [children.apply(place) for place in range(children.size())]


def _streamed(frame: DataFrame) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows in their order, as Arrow, one of Spark's partitions at a time."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)

    def packed(batches: Any) -> Any:
        for batch in batches:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_pydict({_BATCH: [sink.getvalue()]})

    def unpacked() -> Iterator[pa.RecordBatch]:
        for row in frame.mapInArrow(packed, f"{_BATCH} binary").toLocalIterator():
            for batch in pa.ipc.open_stream(bytes(row[_BATCH])):
                yield batch.cast(schema)

    return schema, unpacked()


class _ErrorsForPeople:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PySparkException):
            said = without_stack(str(error))
            if "TABLE_OR_VIEW_NOT_FOUND" in said:
                self._unknown_table(error)
            raise StatementFailed(said) from error
        if isinstance(error, Py4JJavaError):
            raise StatementFailed(without_stack(causes(error))) from error

    def _unknown_table(self, error: PySparkException) -> None:
        """Raises an error that proposes the nearest, or says that the topic has no history."""
        named = (error.getMessageParameters() or {}).get("relationName", "")
        name = named.rpartition(".")[2].strip("`") if not named.endswith("`") else named.split("`")[-2]
        if name:
            self._catalog.table(name)
