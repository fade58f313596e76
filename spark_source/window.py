"""Which records a query wants: ranges of partition, offset and time. Pure, and without Spark, so that other
readers of the log use it.

Promise: a record without a timestamp is in no range of time, as in SQL.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.arrow.arrow_schema import HISTORY_SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Half-open ranges. None: unbounded."""

    partitions: frozenset[int] | None = None
    from_offset: int = 0
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    def has_partition(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions

    def may_hold(self, min_timestamp_ms: int, max_timestamp_ms: int) -> bool:
        """False if no record with such timestamps is in the range of time."""
        after = self.from_ms is None or max_timestamp_ms >= self.from_ms
        return after and (self.to_ms is None or min_timestamp_ms < self.to_ms)

    def only(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose time is in the range."""
        if self.from_ms is None and self.to_ms is None:
            return rows
        times = rows.column("timestamp")
        wanted: Any = times.is_valid()
        if self.from_ms is not None:
            wanted = pc.and_kleene(wanted, pc.greater_equal(times, _scalar(self.from_ms)))
        if self.to_ms is not None:
            wanted = pc.and_kleene(wanted, pc.less(times, _scalar(self.to_ms)))
        return rows.filter(wanted)


def _scalar(milliseconds: int) -> Any:
    return pa.scalar(milliseconds * 1000, pa.int64()).cast(HISTORY_SCHEMA.field("timestamp").type)


def offsets_between(rows: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The rows of offsets `[first, end)`, without a copy. Rows are in offset order."""
    offsets = rows.column("offset").to_numpy()
    start, stop = np.searchsorted(offsets, [first, end]).tolist()
    return rows if (start, stop) == (0, len(offsets)) else rows.slice(start, stop - start)
