"""The errors that a call to Postgres may raise, with their texts, and what an error of Postgres means to the
caller. Counts the errors by kind.
"""

import re
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from sequencer.database.durability import REFUSED_AS_LOST
from sequencer.database.options import CheckedConnection
from sequencer.settings import SequencerSettings


class SequencerUnavailable(Exception):
    """Postgres cannot be asked now; nothing was written by this call."""

    @classmethod
    def cannot_connect(cls, database_url: str, error: BaseException) -> Self:
        reason = " ".join(str(error).split()) or type(error).__name__
        return cls(
            f"cannot reach Postgres at {describe_address(database_url)}: {reason.rstrip('.?')}."
            " Is it running, and is TIDELOG_DATABASE_URL right?"
        )


class TooManyWait(SequencerUnavailable):
    """Too much waits for the database, most of it for this client."""

    def __init__(self) -> None:
        super().__init__(
            "too many of this client's requests wait for Postgres (TIDELOG_DATABASE_POOL_MAX_WAITING): "
            "send them again later, and fewer at a time"
        )


class CommitOutcomeUnknown(Exception):
    """The statement was sent and may have been committed. Repeat the same call until its outcome is known."""

    def __init__(self, message: str, *, connection_lost: bool) -> None:
        super().__init__(message)
        self.connection_lost = connection_lost


def moved() -> CommitOutcomeUnknown:
    """For a call that was sent to the former primary."""
    return CommitOutcomeUnknown(
        "the outcome is not known (another Postgres is the primary by now)", connection_lost=True
    )


def describe_address(database_url: str) -> str:
    """Host, port and database of a URL, without its password."""
    try:
        parts = conninfo_to_dict(database_url)
    except psycopg.ProgrammingError:
        return re.sub(r"//[^@/]*@", "//", database_url)
    return f"{parts.get('host', 'the default socket')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def first_line(error: psycopg.Error) -> str:
    return str(error).strip().split("\n", 1)[0]


@dataclass(slots=True, kw_only=True)
class DatabaseCounters:
    """Counts of errors for operators. Deadlocks and serialization failures are bugs of the lock order."""

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
            (
                f"the outcome is not known (Postgres at {describe_address(self._url)} gave no answer within "
                f"{waited})"
            ),
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
