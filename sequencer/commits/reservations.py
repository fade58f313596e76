"""Segment ids reserved ahead of need, with a lease by Postgres's clock (docs/design/commit.md#reservations).

Promises that every object's key is in a row before it is written, that a commit succeeds only while the id is reserved,
and that doomed is terminal: dooming locks the row that the commit locks, so an agent that wakes late gets a refusal and
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
        """Reserves these ids under these keys. Repeating it is harmless: an id that is there already stays as it is."""
        await self._database.run(
            SQL["reserve"],
            segment_ids=list(keys.keys()),
            object_keys=list(keys.values()),
            lease_s=lease_s,
            writer=writer,
        )
