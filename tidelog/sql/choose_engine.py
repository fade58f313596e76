"""Which engine answers a statement, and its answer.

DuckDB answers where it is installed, understands the statement and needs to read few enough bytes: it starts
in a moment. Spark answers everything else. A statement that neither understands is an error at once, without
Spark's start.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from spark_source.settings import SourceSettings
from tidelog.errors import UserError
from tidelog.sql.bucket_files import BucketFiles
from tidelog.sql.catalog import Catalog
from tidelog.sql.engine import Answer, NotInDuckDB, Run, StatementFailed
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import Statement

if TYPE_CHECKING:
    from tidelog.sql.duckdb_engine import DuckDBEngine, Plan
    from tidelog.sql.spark_engine import SparkEngine


class EngineChoice(StrEnum):
    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """How a statement is to be answered."""

    engine: EngineChoice = EngineChoice.AUTO
    fresh: bool = False
    most_rows: int | None = None
    """The caller takes no more than these, and wants to know if there are more."""


class SqlSession:
    """The engines of one command or shell. Each starts when it is first needed."""

    def __init__(
        self,
        settings: SqlSettings,
        source: Callable[[], SourceSettings],
        tell: Callable[[str], None],
    ) -> None:
        """`tell` shows a person what takes long."""
        self._settings = settings
        self._source = source
        self._tell = tell
        self._files = BucketFiles(settings)
        self.catalog = Catalog(settings, self._files)
        self._duckdb: DuckDBEngine | None = None
        self._spark: SparkEngine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in (self._duckdb, self._spark):
            if engine is not None:
                engine.close()
        self._files.close()

    def begin(self) -> None:
        """A call begins. Its statements see one snapshot of each table."""
        self.catalog.begin()
        for engine in (self._duckdb, self._spark):
            if engine is not None:
                engine.begin()

    def ask(self, statement: Statement, ask: Ask) -> Run:
        """Runs a statement. Raises nothing: the run does."""
        return Run(lambda: self._answer(statement, ask), self._cancel, self._settings.sql_timeout_s)

    def _answer(self, statement: Statement, ask: Ask) -> Answer:
        if ask.engine is EngineChoice.SPARK:
            return self._by_spark(statement, ask, "as asked")
        if ask.engine is EngineChoice.DUCKDB:
            try:
                plan = self._by_duckdb().plan(statement.text, fresh=ask.fresh)
            except NotInDuckDB as failed:
                raise StatementFailed(f"{failed}", "Spark may know it: --engine spark.") from None
            return self._by_duckdb().run(plan, f"as asked; {plan.words()}")
        return self._by_either(statement, ask)

    def _by_either(self, statement: Statement, ask: Ask) -> Answer:
        if importlib.util.find_spec("duckdb") is None:
            return self._by_spark(statement, ask, "DuckDB is not installed")
        try:
            plan = self._by_duckdb().plan(statement.text, fresh=ask.fresh)
        except NotInDuckDB as failed:
            if not _has_spark():
                raise StatementFailed(str(failed), "Spark is not installed, which may know it.") from None
            _check_for_spark(statement, failed)
            return self._by_spark(statement, ask, f"DuckDB: {_first_line(failed)}")
        why = self._too_much(plan)
        if why and _has_spark():
            return self._by_spark(statement, ask, why)
        return self._by_duckdb().run(plan, plan.words())

    def _too_much(self, plan: "Plan") -> str:
        if plan.size_bytes <= self._settings.sql_duckdb_bytes:
            return ""
        return f"{plan.words()}, more than TIDELOG_SQL_DUCKDB_BYTES"

    def _by_duckdb(self) -> "DuckDBEngine":
        from tidelog.sql.duckdb_engine import DuckDBEngine  # an extra, and Spark needs it not

        if self._duckdb is None:
            self._duckdb = DuckDBEngine(self._settings, self.catalog, self._files, self._source)
        return self._duckdb

    def _by_spark(self, statement: Statement, ask: Ask, reason: str) -> Answer:
        self._tell(f"Asking Spark ({reason}) ...")
        from tidelog.sql.spark_engine import SparkEngine  # an extra, which takes seconds to start

        if self._spark is None:
            self._spark = SparkEngine(self._settings, self.catalog, self._source)
        return self._spark.run(statement, reason, fresh=ask.fresh, most_rows=ask.most_rows)

    def _cancel(self) -> None:
        for engine in (self._duckdb, self._spark):
            if engine is not None:
                engine.cancel()


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def _check_for_spark(statement: Statement, failed: NotInDuckDB) -> None:
    """Raises StatementFailed, with DuckDB's words, for what is no statement in Spark's dialect either."""
    if "syntax error" not in str(failed):
        return
    import logging

    import sqlglot

    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        parsed: Any = sqlglot.parse_one(statement.text, read="spark")
    except sqlglot.errors.SqlglotError:
        parsed = None
    if parsed is None or isinstance(parsed, sqlglot.exp.Command | sqlglot.exp.Alias | sqlglot.exp.Column):
        raise StatementFailed(str(failed)) from None


def _first_line(failed: NotInDuckDB) -> str:
    return str(failed).splitlines()[0].rstrip(".")


def require_http(settings: SqlSettings) -> None:
    """Raises UserError unless the catalog and the bucket are known."""
    for name in ("http_url", "store_url"):
        if not getattr(settings, name):
            raise UserError(f"TIDELOG_{name.upper()} is not set.", "This command needs it.")
