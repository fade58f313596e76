"""How a connection is made: autocommit, prepared statements, binary results, named tuples; bounds on statements, and on
a peer that fell silent. And that it tells what came of the attempt."""

from collections.abc import Callable
from typing import Any, Self

from psycopg import AsyncConnection, AsyncCursor, Error, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row

from sequencer.settings import SequencerSettings


class _BinaryCursor(AsyncCursor[Any]):
    """A cursor that asks for binary results unless told otherwise."""

    def __init__(self, connection: AsyncConnection[Any], **options: Any) -> None:
        super().__init__(connection, **options)
        self.format = pq.Format.BINARY


class TellingConnection(AsyncConnection[Any]):
    """A pool says to who waits only that it had none in time; why, it keeps to itself."""

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        tell: Callable[[Self | Error], None] = options.pop("tell")
        try:
            made = await super().connect(conninfo, **options)
        except Error as error:
            tell(error)
            raise
        tell(made)
        return made


def connection_options(database_url: str, settings: SequencerSettings) -> dict[str, Any]:
    """What psycopg is given beside the address, whose own options it keeps."""
    parameters = {
        "statement_timeout": settings.database_statement_timeout_ms,
        "idle_in_transaction_session_timeout": settings.database_idle_in_transaction_timeout_ms,
        "default_transaction_isolation": r"read\ committed",
        "jit": "off",
        "timezone": "UTC",
    }
    given = conninfo_to_dict(database_url)
    return {
        "autocommit": True,
        "prepare_threshold": 0,
        "row_factory": namedtuple_row,
        "cursor_factory": _BinaryCursor,
        "connect_timeout": settings.database_connect_timeout_s,
        "keepalives": 1,
        "keepalives_idle": settings.database_keepalive_idle_s,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": (settings.database_keepalive_idle_s + 3) * 1000,
        "application_name": given.get("application_name") or "tidelog",
        "options": " ".join(
            [*(f"-c {name}={value}" for name, value in parameters.items()), str(given.get("options") or "")]
        ).strip(),
    }
