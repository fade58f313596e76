"""Facts about the cluster and about the Postgres under it: its id, and whether that Postgres keeps what it acknowledged
(DESIGN §10).
"""

from dataclasses import dataclass

from sequencer.database import Database, DatabaseIdentity
from sequencer.migrate import migrations
from sequencer.named_sql import load_statements

SQL = load_statements("cluster")

DURABLE_SYNCHRONOUS_COMMIT = ("on", "remote_apply")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseHealth:
    """What Postgres answered to a readiness check."""

    identity: DatabaseIdentity
    synchronous_commit: str
    synchronous_standby_names: str
    migration: int

    def complaints(self, standbys_expected: bool) -> tuple[str, ...]:
        """Why an agent on this database must not be ready; empty when it may."""
        found = []
        if self.synchronous_commit not in DURABLE_SYNCHRONOUS_COMMIT:
            found.append(
                f"synchronous_commit is {self.synchronous_commit}: an acknowledged record could be lost; set it to on"
            )
        if standbys_expected and not self.synchronous_standby_names.strip():
            found.append(
                "synchronous_standby_names is empty although standbys are expected:"
                " a failover would lose acknowledged records"
            )
        if self.migration < len(migrations()):
            found.append(f"the database is at migration {self.migration}: run `tidelog migrate`")
        return tuple(found)


class Cluster:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._cluster_id: str | None = None

    async def cluster_id(self) -> str:
        """22 characters, made by the first migration and kept for ever."""
        if self._cluster_id is None:
            rows = await self._database.fetch(SQL["cluster_id"])
            self._cluster_id = str(rows[0].cluster_id)
        return self._cluster_id

    async def health(self) -> DatabaseHealth:
        """Asks Postgres; raises SequencerUnavailable if it does not answer or is not migrated."""
        identity = await self._database.read_identity()
        [row] = await self._database.fetch(SQL["durability"])
        return DatabaseHealth(
            identity=identity,
            synchronous_commit=row.synchronous_commit,
            synchronous_standby_names=row.synchronous_standby_names,
            migration=row.migration or 0,  # none yet: the first one is being applied
        )
