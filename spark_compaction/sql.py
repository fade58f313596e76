"""Spark SQL over the topics' history, for answers that fit the memory; `tidelog/sql/` has the others."""

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings


class QueryFailed(Exception):
    """The query is wrong, or could not be run. The message is Spark's, without its Java stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Python values: binary as bytes, timestamps as datetimes in UTC."""
    truncated: bool
    """True: there were more rows than `sql_max_rows`."""


def query(settings: CompactionSettings, text: str, *, spark: SparkSession | None = None) -> QueryResult:
    """Runs one statement and returns its first `sql_max_rows` rows. Raises QueryFailed, SparkUnavailable or
    JavaMissing.
    """
    session = spark or spark_session(settings)
    try:
        table = session.sql(text).limit(settings.sql_max_rows + 1).toArrow()
    except PySparkException as error:
        raise QueryFailed(without_stack(str(error))) from error
    except Py4JJavaError as error:
        raise QueryFailed(causes(error)) from error
    kept = table.slice(0, settings.sql_max_rows)
    columns = [column.to_pylist() for column in kept.columns]
    return QueryResult(
        columns=tuple(table.column_names),
        rows=tuple(zip(*columns, strict=True)),
        truncated=table.num_rows > settings.sql_max_rows,
    )


def without_stack(text: str) -> str:
    for end in ("\nJVM stacktrace", "\n\tat ", "; line ", ";\n'"):
        text = text.split(end, 1)[0]
    return text.strip()


def causes(error: Py4JJavaError) -> str:
    """Returns the messages of a Java exception and its causes, outermost first."""
    messages: list[str] = []
    cause = error.java_exception
    while cause is not None:
        message = str(cause.getMessage() or cause.getClass().getSimpleName())
        if not any(message in said for said in messages):
            messages.append(message)
        cause = cause.getCause()
    return ": ".join(messages)
