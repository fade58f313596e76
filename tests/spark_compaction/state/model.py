"""What the table of a compacted topic must hold, and what consumers of committed records see."""

from typing import Any

from spark_compaction.settings import CompactionSettings
from tests.spark_compaction.log import Log
from tests.spark_compaction.reading import Rows, iceberg_rows

_OFFSET, _KEY, _VALUE = 1, 4, 5


def state_of(rows: Rows) -> Rows:
    """The last record of each key of a partition, unless that is a tombstone."""
    last: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda row: row[:2]):
        if row[_KEY] is not None:
            last[row[0], row[_KEY]] = row
    return sorted((row for row in last.values() if row[_VALUE] is not None), key=lambda row: row[:2])


def written_state(log: Log, topic: str) -> Rows:
    return state_of(log.expected[topic])


async def table_rows(settings: CompactionSettings, topic: str) -> Rows:
    """By PyIceberg. Checks that no row is there twice."""
    rows = await iceberg_rows(settings, topic)
    assert len({row[:2] for row in rows}) == len(rows)
    return rows
