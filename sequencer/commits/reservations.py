"""Segment ids that are reserved ahead of need, with a lease by Postgres' clock (docs/design/commit.md#reservations).

Promises:
- Every object's key is in a row before the object is written.
- A commit succeeds only while the id is reserved.
- Doomed is final: dooming locks the row that the commit locks, so an agent that wakes late gets a refusal,
  never a dangling run.
"""

from collections.abc import Mapping

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from storage.identifiers import ObjectKey, SegmentId

SQL = load_statements("reservations")


class Reservations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, keys: Mapping[SegmentId, ObjectKey], lease_s: float, writer: str) -> None:
        """Reserves these ids under these keys. It may be repeated: an existing id stays as it is."""
        await self._database.run(
            SQL["reserve"],
            segment_ids=list(keys.keys()),
            object_keys=list(keys.values()),
            lease_s=lease_s,
            writer=writer,
        )
