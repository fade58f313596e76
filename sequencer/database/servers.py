"""Finds out which Postgres connections lead to, whether to believe it, and how durable its settings are
(docs/design/ownership.md#one-primary).

Promises:
- A connection is checked before its first statement, and again after every change. Until then it gets no
  other statement.
- When one shows another Postgres than before, `on_change` is called before the connection is used.
- An old primary (a standby of it was promoted) is refused. So is a database other than the one to keep to.

`Primaries` is pure: the caller asks the servers and acts on the verdict.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, LiteralString

import psycopg
from psycopg import errors

from sequencer.database.durability import Durability
from sequencer.database.errors import SequencerUnavailable, describe_address, moved
from sequencer.database.options import CheckedConnection

log = logging.getLogger("tidelog")

# A WAL file's name begins with the timeline; the control file's own copy lags behind a promotion.
_FACTS: LiteralString = (
    "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_identifier,"
    " pg_walfile_name(pg_current_wal_insert_lsn()) AS wal_file, pg_postmaster_start_time() AS started_at,"
    " current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names"
)
_FACTS_AND_STORE: LiteralString = f"{_FACTS}, (SELECT store_id FROM cluster) AS store_id"
DURABILITY: LiteralString = (
    "SELECT current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """Which Postgres this is. A failover to a standby raises the timeline; a restored backup may change
    both."""

    system_identifier: int
    timeline: int


class Verdict(Enum):
    SAME = auto()
    CHANGED = auto()
    """Another Postgres than before answers. Forget what is known of the former one."""
    OLD = auto()
    """A standby of this server was promoted. Believe nothing that it says."""


class Primaries:
    """The servers seen so far."""

    def __init__(self) -> None:
        self.current: DatabaseIdentity | None = None
        self._highest: dict[int, int] = {}
        """Timelines by system identifier."""

    def highest_timeline(self, system_identifier: int) -> int:
        return self._highest.get(system_identifier, 0)

    def judge(self, seen: DatabaseIdentity) -> Verdict:
        """Judges the server that a connection leads to. Unless it is old, it becomes the current one."""
        if seen.timeline < self.highest_timeline(seen.system_identifier):
            return Verdict.OLD
        self._highest[seen.system_identifier] = seen.timeline
        before, self.current = self.current, seen
        return Verdict.SAME if before in (None, seen) else Verdict.CHANGED


class Servers:
    """`follow` ends every connection but the given one. `when_restarted`: a server with standbys was
    restarted."""

    def __init__(
        self,
        database_url: str,
        *,
        standbys_expected: bool,
        follow: Callable[[CheckedConnection], Awaitable[None]],
        when_restarted: Callable[[], None],
    ) -> None:
        self._url = database_url
        self._standbys_expected = standbys_expected
        self._follow = follow
        self._when_restarted = when_restarted
        self._primaries = Primaries()
        self._when_changed: list[Callable[[], None]] = []
        self._started_at: datetime | None = None
        self.generation = 0
        """Counts changes of the primary. Answers on connections of an earlier generation are dropped."""
        self.store_id: str | None = None
        """The database to keep to, once one was named."""
        self.weakness: str | None = None
        """Why nothing may be acknowledged now; None if it may."""

    @property
    def identity(self) -> DatabaseIdentity | None:
        return self._primaries.current

    def on_change(self, changed: Callable[[], None]) -> None:
        """Calls `changed` whenever another Postgres answers than before. It must forget what the former one
        said."""
        self._when_changed.append(changed)

    def is_checked(self, connection: CheckedConnection) -> bool:
        return connection.generation == self.generation and connection.leads_to == self.store_id

    def check_primary(self, connection: CheckedConnection) -> None:
        """Call it after each wait between an answer and its caller. Raises CommitOutcomeUnknown."""
        if connection.generation != self.generation:
            raise moved()

    async def check_connection(self, connection: CheckedConnection) -> None:
        """Finds out where a connection leads and how durable its settings are. Raises SequencerUnavailable if
        it must get no statements, and what psycopg raises for a lost connection."""
        store_id, found, generation = self.store_id, None, self.generation
        try:
            [row] = await (
                await connection.execute(_FACTS if store_id is None else _FACTS_AND_STORE)
            ).fetchall()
            found = None if store_id is None else row.store_id
        except (errors.UndefinedTable, errors.UndefinedColumn):
            pass  # never migrated, so it is another database
        except psycopg.Error as error:
            if connection.closed:
                raise
            await connection.close()
            raise SequencerUnavailable.cannot_connect(self._url, error) from error
        if found != store_id:
            await connection.close()
            raise SequencerUnavailable(
                f"the database at {describe_address(self._url)} is not the one that this process began "
                "with, and is"
                f" asked nothing: the id of its store is {found}, and was {store_id}. Let the address in"
                " TIDELOG_DATABASE_URL lead back; or restart this process, if this database is meant"
            )
        identity = DatabaseIdentity(
            system_identifier=row.system_identifier, timeline=int(row.wal_file[:8], 16)
        )
        verdict = self._primaries.judge(identity)
        if verdict is Verdict.OLD:
            await connection.close()
            raise self._old_primary(identity)
        if verdict is Verdict.CHANGED:
            await self._change(connection)
        elif generation != self.generation:
            return  # the primary changed meanwhile: this answer may be older than the change
        self._note(row)
        connection.generation, connection.leads_to = self.generation, store_id

    def _note(self, row: Any) -> None:
        durability = Durability(
            synchronous_commit=row.synchronous_commit, synchronous_standby_names=row.synchronous_standby_names
        )
        self.note_durability(durability)
        if row.started_at != self._started_at:
            # A restart makes commits visible that still waited for a standby, and that no standby may have.
            self._started_at = row.started_at
            if durability.has_standbys:
                self._when_restarted()

    async def _change(self, connection: CheckedConnection) -> None:
        self.generation += 1
        log.warning(
            "another Postgres is the primary: all older connections end", extra=_fields(self.identity)
        )
        for changed in self._when_changed:
            changed()
        await self._follow(connection)

    def note_durability(self, durability: Durability) -> None:
        complaints = durability.complaints(standbys_expected=self._standbys_expected)
        self.note_weakness("; ".join(complaints) or None)

    def note_weakness(self, weakness: str | None) -> None:
        if weakness != self.weakness:
            self.weakness = weakness
            if weakness is None:
                log.info("the settings of Postgres are durable again")
            else:
                log.warning("nothing is acknowledged", extra={"reason": weakness})

    def refuse_while_weak(self) -> None:
        """Raises SequencerUnavailable."""
        if self.weakness is not None:
            raise SequencerUnavailable(f"nothing is written: {self.weakness}")

    def _old_primary(self, identity: DatabaseIdentity) -> SequencerUnavailable:
        highest = self._primaries.highest_timeline(identity.system_identifier)
        return SequencerUnavailable(
            f"the Postgres at {describe_address(self._url)} is an old primary, and is asked nothing: its "
            "timeline is"
            f" {identity.timeline}, and a standby was promoted to timeline {highest}. Stop it, and let "
            "the address in"
            " TIDELOG_DATABASE_URL lead to the new primary; or restart this process, if this database is "
            "meant"
        )


def _fields(identity: DatabaseIdentity | None) -> dict[str, int]:
    return (
        {}
        if identity is None
        else {"system_identifier": identity.system_identifier, "timeline": identity.timeline}
    )
