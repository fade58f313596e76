"""An answer as people and programs read it: a table, csv, json, or a Parquet file.

Promises:
- Bytes that are UTF-8 are shown as text, others as hexadecimal digits: `0xff00`, in JSON `{"hex": "ff00"}`.
  A Parquet file has the bytes.
- csv, json and Parquet come a batch at a time: memory does not grow with the rows. A table has at most
  `sql_max_rows`.
- A file has its name when it is complete.
"""

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tidelog.errors import UserError
from tidelog.output import counted
from tidelog.sql.engine import Answer

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table


class Format(StrEnum):
    """`table` for people; `csv`, `json` (an object per line) and `parquet` for programs."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Written:
    rows: int
    is_cut: bool = False
    """There were more rows than a table shows."""


class Output:
    """Where the answers of one call go, one after another."""

    def __init__(self, form: Format, path: Path | None, most_rows: int) -> None:
        if form is Format.PARQUET and path is None:
            raise UserError("Parquet is not for a terminal.", "Name a file: --output answer.parquet.")
        self._form = form
        self._path = path
        self._most_rows = most_rows
        self._answers = 0

    @property
    def most_rows(self) -> int | None:
        """What an engine need not exceed."""
        return self._most_rows if self._form is Format.TABLE else None

    @contextlib.contextmanager
    def opened(self) -> Iterator["Output"]:
        """The file gets its name at the end, if nothing failed."""
        if self._path is None:
            self._to: Any = sys.stdout
            yield self
            sys.stdout.flush()
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb" if self._form is Format.PARQUET else "w", **self._text()) as file:
                self._to = file
                yield self
            partial.replace(self._path)
        except OSError as error:
            raise UserError(f"{self._path} cannot be written: {error.strerror or error}.") from None
        finally:
            partial.unlink(missing_ok=True)

    def write(self, answer: Answer) -> Written:
        """Raises what the answer's batches raise."""
        self._answers += 1
        if self._answers > 1 and self._form is Format.PARQUET:
            raise UserError("A Parquet file has one answer.", "Give one statement, or use csv or json.")
        if self._form is Format.TABLE:
            return self._table(answer)
        if self._form is Format.PARQUET:
            return _parquet(answer, self._to)
        if self._answers > 1 and self._form is Format.CSV:
            self._to.write("\n")
        return _csv(answer, self._to) if self._form is Format.CSV else _json(answer, self._to)

    def _text(self) -> dict[str, Any]:
        return {} if self._form is Format.PARQUET else {"encoding": "utf-8", "newline": ""}

    def _table(self, answer: Answer) -> Written:
        from rich.console import Console

        rows: list[tuple[Any, ...]] = []
        for batch in answer.batches:
            rows += _rows(batch, text_of)
            if len(rows) > self._most_rows:
                break
        is_cut = len(rows) > self._most_rows
        Console(file=self._to).print(_as_table(answer.schema, rows[: self._most_rows]))
        return Written(min(len(rows), self._most_rows), is_cut)


def _csv(answer: Answer, to: IO[str]) -> Written:
    lines = csv.writer(to, lineterminator="\n")
    lines.writerow(answer.schema.names)
    count = 0
    for batch in answer.batches:
        lines.writerows(_rows(batch, text_of))
        count += batch.num_rows
    return Written(count)


def _json(answer: Answer, to: IO[str]) -> Written:
    names = answer.schema.names
    as_line = json.JSONEncoder(default=str, ensure_ascii=False).encode
    count = 0
    for batch in answer.batches:
        to.writelines(f"{as_line(dict(zip(names, row, strict=True)))}\n" for row in _rows(batch, plain))
        count += batch.num_rows
    return Written(count)


def _parquet(answer: Answer, to: Any) -> Written:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(to, answer.schema, compression="zstd") as writer:
        for batch in answer.batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return Written(count)


def _rows(batch: "pa.RecordBatch", shown: Callable[[Any], Any]) -> Iterator[tuple[Any, ...]]:
    """The rows, with what is neither text nor a number as `shown` has it. A null stays None."""
    return zip(*(_values(column, shown) for column in batch.columns), strict=True)


def _values(column: "pa.Array[Any]", shown: Callable[[Any], Any]) -> list[Any]:
    """Text and numbers column by column: one value after another would cost ten times as much."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            return list(column.cast(pa.string()).to_pylist())
        except pa.ArrowInvalid:
            pass  # some are no text
    elif pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us":
        times: Any = column.cast(pa.timestamp("us"))  # in UTC
        with contextlib.suppress(pa.ArrowInvalid):  # Kafka's have no more than milliseconds
            times = times.cast(pa.timestamp("ms"))
        return list(pc.strftime(times, format="%Y-%m-%d %H:%M:%SZ").to_pylist())
    elif not pa.types.is_nested(kind) and not pa.types.is_temporal(kind) and not pa.types.is_decimal(kind):
        return list(column.to_pylist())
    return [None if value is None else shown(value) for value in column.to_pylist()]


def _as_table(schema: "pa.Schema", rows: list[tuple[Any, ...]]) -> "Table":
    from rich.table import Table

    table = Table(title=counted(len(rows), "row"), header_style="bold cyan")
    for index, name in enumerate(schema.names):
        numbers = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*("[dim]null[/]" if value is None else _escaped(value) for value in row))
    return table


def _escaped(value: Any) -> str:
    return text_of(value).replace("[", "\\[")


def text_of(value: Any) -> str:
    """A value as one text: bytes as text or digits, lists and structs as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"0x{value.hex()}"
    if isinstance(value, datetime) and value.microsecond % 1000 == 0:  # Kafka's timestamps have no more
        return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    found = plain(value)
    return (
        json.dumps(found, default=str, ensure_ascii=False) if isinstance(found, dict | list) else str(found)
    )


def plain(value: Any) -> Any:
    """A value that JSON can hold. Lists and structs, such as headers, are converted within."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
