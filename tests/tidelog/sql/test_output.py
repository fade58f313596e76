"""How `tidelog sql` shows values."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidelog.sql.engine import Answer, StatementFailed
from tidelog.sql.output import Format, Output, plain, text_of


def test_text_in_binary_columns_is_shown_astext_of() -> None:
    assert text_of("Zoë [1]".encode()) == "Zoë [1]"


def test_bytes_that_are_no_text_are_shown_as_hexadecimal_digits() -> None:
    assert text_of(b"\xff\x00") == "0xff00"


def test_headers_are_shown_as_text_in_their_order() -> None:
    headers = [{"key": "a", "value": b"x"}, {"key": "a", "value": None}, {"key": "b", "value": b"\xff"}]

    assert plain(headers) == [
        {"key": "a", "value": "x"},
        {"key": "a", "value": None},
        {"key": "b", "value": {"hex": "ff"}},
    ]


def test_timestamps_are_shown_in_utc_with_milliseconds() -> None:
    assert text_of(datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)) == "2026-01-02 03:04:05.006Z"


def test_columns_are_shown_as_their_values_are(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    finer = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "n": (pa.int64(), [1, None]),
        "text": (pa.binary(), ["Zoë".encode(), None]),
        "raw": (pa.binary(), [b"\xff", b"a"]),
        "at": (pa.timestamp("us", "Etc/UTC"), [when, None]),
        "finer": (pa.timestamp("us", "UTC"), [finer, when]),
        "day": (pa.date32(), [date(2026, 1, 2), None]),
        "price": (pa.decimal128(5, 2), [Decimal("1.50"), None]),
        "list": (pa.list_(pa.binary()), [[b"x", b"\xff"], []]),
        "flag": (pa.bool_(), [True, None]),
    }
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in columns.items()])
    batch = pa.RecordBatch.from_pydict({name: values for name, (_, values) in columns.items()}, schema)

    def written(form: Format) -> str:
        path = tmp_path / f"answer.{form}"
        with Output(form, path, 10).opened() as output:
            output.write(Answer(engine="duckdb", reason="", schema=schema, batches=iter([batch])))
        return path.read_text()

    assert list(csv.reader(io.StringIO(written(Format.CSV)))) == [
        list(columns),
        [
            *("1", "Zoë", "0xff", "2026-01-02 03:04:05.006Z", "2026-01-02 03:04:05.000006Z"),
            *("2026-01-02", "1.50", '["x", {"hex": "ff"}]', "True"),
        ],
        ["", "", "a", "", "2026-01-02 03:04:05.006000Z", "", "", "[]", ""],
    ]
    first, second = map(json.loads, written(Format.JSON).splitlines())
    assert first == {
        **{"n": 1, "text": "Zoë", "raw": {"hex": "ff"}, "at": "2026-01-02 03:04:05.006Z"},
        **{"finer": "2026-01-02 03:04:05.000006Z", "day": "2026-01-02", "price": "1.50"},
        **{"list": ["x", {"hex": "ff"}], "flag": True},
    }
    assert (second["n"], second["raw"], second["list"], second["flag"]) == (None, "a", [], None)
    assert "Zoë" in written(Format.TABLE)


def test_a_file_appears_only_when_the_answer_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "answer.csv"

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"a": [1]})
        raise StatementFailed("half way")

    with pytest.raises(StatementFailed), Output(Format.CSV, path, 10).opened() as output:
        output.write(
            Answer(engine="duckdb", reason="", schema=pa.schema([("a", pa.int64())]), batches=failing())
        )

    assert list(tmp_path.iterdir()) == []
