"""What an error of Postgres means to the caller, and how often each kind came."""

from dataclasses import dataclass

import psycopg
from psycopg import errors

from sequencer.database.durability import REFUSED_AS_LOST
from sequencer.database.errors import CommitOutcomeUnknown, SequencerUnavailable, describe_address, first_line
from sequencer.database.options import CheckedConnection
from sequencer.settings import SequencerSettings


@dataclass(slots=True, kw_only=True)
class DatabaseCounters:
    """What an operator watches; deadlocks and serialization failures are bugs of the lock order."""

    deadlocks: int = 0
    serialization_failures: int = 0
    lost_connections: int = 0
    statement_timeouts: int = 0


class Failures:
    def __init__(self, database_url: str, settings: SequencerSettings) -> None:
        self._url = database_url
        self._settings = settings
        self.counters = DatabaseCounters()

    def no_answer(self) -> CommitOutcomeUnknown:
        """Counts and returns the error for an answer that did not come in time."""
        self.counters.statement_timeouts += 1
        waited = f"TIDELOG_DATABASE_ANSWER_TIMEOUT_S ({self._settings.database_answer_timeout_s} s)"
        return CommitOutcomeUnknown(
            f"the outcome is not known (Postgres at {describe_address(self._url)} gave no answer within {waited})",
            connection_lost=False,
        )

    def raise_meaning(self, error: psycopg.Error, connection: CheckedConnection) -> None:
        """Raises what the error means to the caller; returns if it is an error of this program."""
        if connection.cut_because is not None:
            raise connection.cut_because from error
        if error.diag.sqlstate == REFUSED_AS_LOST:
            raise SequencerUnavailable(first_line(error)) from error
        if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction | errors.UndefinedColumn):
            raise SequencerUnavailable(
                f"the database at {describe_address(self._url)} is not migrated ({first_line(error)}):"
                " run `tidelog migrate`"
            ) from error
        if isinstance(error, errors.ReadOnlySqlTransaction):
            # A full disk, or a switch-over: an operator of Postgres ends it.
            raise SequencerUnavailable(
                f"Postgres at {describe_address(self._url)} takes no writes now ({first_line(error)})"
            ) from error
        if isinstance(error, psycopg.OperationalError | errors.IdleInTransactionSessionTimeout):
            raise self._unknown(error, lost=connection.closed) from error

    def _unknown(self, error: psycopg.Error, lost: bool) -> CommitOutcomeUnknown:
        if isinstance(error, errors.DeadlockDetected):
            self.counters.deadlocks += 1
        elif isinstance(error, errors.SerializationFailure):
            self.counters.serialization_failures += 1
        elif isinstance(error, errors.QueryCanceled | errors.LockNotAvailable):
            self.counters.statement_timeouts += 1
        elif lost:
            self.counters.lost_connections += 1
        message = f"the outcome is not known ({type(error).__name__}: {first_line(error)})"
        return CommitOutcomeUnknown(message, connection_lost=lost)
