"""What a handler is told about the request it answers, besides the request itself."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.kafka.memory import Reservation
from agent.kafka.turns import Turn
from agent.settings import AgentSettings

if TYPE_CHECKING:
    from agent.parts import Parts
    from storage.identifiers import Partition, TopicId


@dataclass(slots=True, kw_only=True)
class ConnectionState:
    """What lives as long as a connection and belongs to no single request. Owned by the connection; handlers may read
    and note things."""

    connection_id: int
    peer: str
    """The client's address, `host:port`."""
    redirected: "dict[tuple[TopicId, Partition], float]" = field(default_factory=dict)
    """When this connection was first told that another agent is the choice for a partition (see
    agent/kafka/routing.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    api_key: int
    api_version: int
    client_id: str | None
    client_zone: str
    """The zone the client says it is in, else this agent's."""
    connection: ConnectionState
    settings: AgentSettings
    parts: "Parts"
    received_at_s: float
    """On the event loop's clock: `asyncio.get_running_loop().time()`."""
    memory: Reservation
    """The request's bytes in the agent's budget; `memory.retain()` keeps them reserved beyond the answer."""
    turn: Turn | None
    """Set for APIs that are `ordered`."""

    def deadline_s(self, wait_s: float, longest_s: float) -> float:
        """The loop time at which the answer is due, for a request that may wait `wait_s`, held to [0, longest_s]."""
        return self.received_at_s + min(max(wait_s, 0.0), longest_s)

    def remaining_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - asyncio.get_running_loop().time())
