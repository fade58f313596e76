"""What a Kafka API module says about itself, and how a request that cannot be answered ends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from kio.static.primitive import i32Timedelta

from agent.kafka.context import RequestContext

NO_THROTTLE: Final = i32Timedelta.parse(timedelta(0))

# Requests are kio's class of the version asked. A response is written by the writer of that version and may be any
# object with the attributes it reads: handlers build the newest version's classes, older writers take what they know.
# None: the request wants no answer.
Handler: TypeAlias = Callable[[Any, RequestContext], Awaitable[object | None]]


class _Absent:
    """Equals the default of every version's class, so that the writers leave the tagged field out."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ABSENT: Final[Any] = _Absent()
"""A tagged field of a struct type that is not sent. The class's own default would not do: it equals no other version's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: `versions` are what ApiVersions advertises, `served_from` the first that is really served."""

    key: int
    name: str
    versions: range
    handle: Handler
    served_from: int = 0
    ordered: bool = False
    """Whether its requests take turns on a connection: `context.turn` is then set (see agent/kafka/turns.py)."""
    carried_out: bool = False
    """Whether a request that was received is carried out though its client hangs up; all others are cancelled then."""

    def serves(self, version: int) -> bool:
        return version in self.versions and version >= self.served_from


class CloseConnection(Exception):
    """Raised by a handler that can only answer by hanging up, as Kafka does for a failed produce with acks=0."""
