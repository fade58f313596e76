"""Facts about the cluster and its Postgres: the cluster's id, and whether Postgres keeps what it acknowledged
(docs/design/garbage.md#when-nothing-may-be-deleted).
"""

from dataclasses import dataclass

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from sequencer.database.servers import DatabaseIdentity
from sequencer.migrate import migrations

SQL = load_statements("cluster")

_CERTAIN_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseHealth:
    """Postgres' answer to a readiness check."""

    identity: DatabaseIdentity
    weakness: str | None
    """Why nothing may be acknowledged."""
    is_in_doubt: bool
    migration: int

    def complaints(self) -> tuple[str, ...]:
        """Why an agent on this database must not be ready; empty if it may be."""
        found = [] if self.weakness is None else [self.weakness]
        if self.is_in_doubt:
            found.append(
                "the wait of a commit for its synchronous standby was cut short, or Postgres was "
                "restarted: nothing new is read until the standby confirms a write"
            )
        if self.migration < len(migrations()):
            found.append(f"the database is at migration {self.migration}: run `tidelog migrate`")
        return tuple(found)


class Cluster:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._cluster_id: str | None = None

    async def cluster_id(self) -> str:
        """The id: 22 characters, made by the first migration and kept for ever."""
        if self._cluster_id is None:
            rows = await self._database.run(SQL["cluster_id"])
            self._cluster_id = str(rows[0].cluster_id)
        return self._cluster_id

    async def health(self) -> DatabaseHealth:
        """Asks Postgres. Raises SequencerUnavailable if it does not answer or is not migrated."""
        identity = await self._database.read_identity()
        [row] = await self._database.run_local(SQL["migration"])
        return DatabaseHealth(
            identity=identity,
            weakness=self._database.weakness,
            is_in_doubt=not await self._database.is_certain(_CERTAIN_WITHIN_S),
            migration=row.migration or 0,  # none yet: the first one is being applied
        )
