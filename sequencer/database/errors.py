"""What a call to Postgres may raise, and the words for it."""

import re
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict


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
            "too many of this client's requests wait for Postgres (TIDELOG_DATABASE_POOL_MAX_WAITING): send them again"
            " later, and fewer at a time"
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
