"""The checksum of records: the same however they are cut, another one for any other records."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_compaction.history_file import RecordDigest
from storage.arrow.arrow_schema import RECORD_SCHEMA

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAYBE_BYTES = st.none() | st.binary(max_size=5)
HEADERS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": MAYBE_BYTES}), max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "offset": st.integers(0, 2**63 - 1),
            "timestamp": st.none()
            | st.integers(0, 10**12).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
            "timestamp_type": st.integers(0, 1),
            "key": MAYBE_BYTES,
            "value": MAYBE_BYTES,
            "headers": HEADERS,
        }
    ),
    max_size=8,
)


def digest(rows: list[dict[str, Any]], cuts: tuple[int, ...] = ()) -> str:
    """Of the rows cut into batches; each batch is a slice of a longer one."""
    whole = pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)
    ends = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    made = RecordDigest()
    for start, end in pairwise(ends):
        made.add(whole.slice(start, end - start))
    return made.value


@given(ROWS, st.lists(st.integers(0, 100), max_size=3))
def test_it_does_not_depend_on_how_the_rows_are_cut(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    if rows:
        assert digest(rows, tuple(cuts)) == digest(rows)


@given(ROWS, ROWS)
def test_other_rows_have_another_one(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert (digest(rows) == digest(others)) == (rows == others)


def a_row(offset: int, **fields: Any) -> dict[str, Any]:
    row = {
        "offset": offset,
        "timestamp": EPOCH,
        "timestamp_type": 0,
        "key": b"k",
        "value": b"v",
        "headers": [],
    }
    return row | fields


def test_what_looks_alike_is_not_taken_for_the_same() -> None:
    header = {"key": "h", "value": b""}
    rows = [
        [a_row(0), a_row(1)],
        [a_row(0)],
        [a_row(0), a_row(2)],
        [a_row(1), a_row(0)],
        [a_row(0, value=None), a_row(1)],
        [a_row(0, value=b""), a_row(1)],
        [a_row(0, value=b"vv"), a_row(1, value=b"")],
        [a_row(0, key=b"kv", value=b""), a_row(1)],
        [a_row(0, headers=[header]), a_row(1)],
        [a_row(0, headers=[header, header]), a_row(1)],
        [a_row(0, headers=[{"key": "h", "value": None}]), a_row(1)],
        [a_row(0), a_row(1, headers=[header])],
        [a_row(0, timestamp=None), a_row(1)],
    ]
    assert len({digest(each) for each in rows}) == len(rows)
