"""What a Kafka API module declares, and how a request ends that cannot be answered."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias

from kio.static.primitive import i32Timedelta

from agent.kafka.context import RequestContext
from agent.settings import AgentSettings

API_VERSIONS_KEY: Final = 18
NO_THROTTLE: Final = i32Timedelta.parse(timedelta(0))

# Requests are kio's class of the requested version, completed with the fields that this version lacks
# (agent/kafka/older_requests.py). The writer of that version writes the response. It takes any object with
# the attributes that it reads: handlers build the newest version's classes, and older writers take the fields
# that they know. A response may also be `Encoded` already. None: the request wants no answer.
Handler: TypeAlias = Callable[[Any, RequestContext[Any]], Awaitable[object | None]]

# The callback gets what makes the response. An error that it raises breaks only this request.
Respond: TypeAlias = Callable[[Callable[[], object]], None]

# Takes a request that waits for one event only, without a task of its own, and responds to it once. Returns
# False to leave the request to the handler.
Beginner: TypeAlias = Callable[[Any, RequestContext[Any], Respond], bool]

# Replaces kio's reader for the most frequent requests. Takes the frame, the position of its body and the
# version. Raises if the frame is not such a request.
Decoder: TypeAlias = Callable[[bytes | memoryview, int, int, AgentSettings], Any]


class _Absent:
    """Equals the default of every version's class, so the writers leave the tagged field out."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ABSENT: Final[Any] = _Absent()
"""A tagged field of a struct type that is not sent. The class's own default would not work, because it equals
no other version's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCode:
    """What a module in `apis/` defines: `handle`, its docstring, `begin` if most requests need no task, and
    `decode` if it replaces kio's reader.
    """

    handle: Handler
    request: object
    """The type of the requests that `handle` takes, of all versions (agent/kafka/older_requests.py)."""
    begin: Beginner | None
    decode: Decoder | None
    documentation: str


class Order(Enum):
    """When a request starts, and until when later requests on its connection wait
    (docs/design/failure-rules.md#order-on-a-connection).

    Every request waits for those before it, and so sees their effects. The one exception: a Produce with acks
    0 ends before its commit.
    """

    ALONE = auto()
    """The requests behind it wait for its answer."""
    READ = auto()
    """The requests behind it wait for its answer, except other reads. They run at the same time."""
    PIPELINED = auto()
    """The requests behind it wait for its answer, except those of the same API. They run at the same time and
    take turns (`context.turn`), so that they take effect in order.
    """
    PARKED = auto()
    """The requests behind it wait until it ends its turn (`context.turn`). From then on it only waits for
    other clients.
    """
    LONG_POLL = auto()
    """No request behind it waits. An answer that is ready behind it ends its wait (`context.watch`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API. `versions` are what ApiVersions advertises, `served_from` is the first that is really
    served.
    """

    key: int
    name: str
    versions: range
    module: str
    """The module in `apis/`. It is imported at its first use: with kio's classes all of them take 0.3 s of
    CPU, which an agent's first answers need not wait for. The agent imports all of them once it serves
    (agent/deferred_imports.py).
    """
    served_from: int = 0
    order: Order = Order.ALONE
    has_secrets: bool = False
    """True: its requests have what must not be logged."""
    carried_out: bool = False
    """True: a request that was received is carried out even if its client hangs up. All others are cancelled
    then.
    """

    def serves(self, version: int) -> bool:
        return version in self.versions and version >= self.served_from

    @property
    def code(self) -> ApiCode:
        return _code_of(self.module)


@cache
def _code_of(module: str) -> ApiCode:
    found = import_module(f"agent.kafka.apis.{module}")
    return ApiCode(
        handle=found.handle,
        request=found.handle.__annotations__["request"],
        begin=getattr(found, "begin", None),
        decode=getattr(found, "decode", None),
        documentation=found.__doc__ or "",
    )


class CloseConnection(Exception):
    """A handler raises this if it can only answer by hanging up, as Kafka does for a failed produce with
    acks=0.
    """
