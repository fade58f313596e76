"""Who waits for the database, and whose turn is next (docs/design/failure-rules.md#isolation). Pure.

Promises:
- Hosts take turns, and so do the connections of a host. A client with many requests delays only itself.
- A full queue refuses the newest item of the busiest connection of the busiest host. A single request is
  never refused because of others.
- The agent's own requests are one more host. They are never refused in favour of a client.
"""

from collections import OrderedDict
from collections.abc import Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

_Item = TypeVar("_Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Asker:
    """A connection of a client, and the host that it comes from."""

    host: str
    connection_id: int


THE_AGENT: Final = Asker("", 0)

ASKED_BY: Final = ContextVar("asked_by", default=THE_AGENT)
"""The asker that the current task queries the database for. A connection sets it for each request. Work that
several clients share runs in its own context, where it is the agent."""


class FairQueue(Generic[_Item]):
    """At most `most` items wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: OrderedDict[str, OrderedDict[int, OrderedDict[_Item, None]]] = OrderedDict()
        """Hosts in the order of their turns, and within each its connections in the order of theirs."""
        self._waiting: dict[str, int] = {}
        self._connections = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, asker: Asker, item: _Item) -> _Item | None:
        """Returns the item that must go because the queue is full. It may be this one."""
        connections = self._hosts.setdefault(asker.host, OrderedDict())
        items = connections.get(asker.connection_id)
        if items is None:
            items = connections[asker.connection_id] = OrderedDict()
            self._connections += 1
        items[item] = None
        self._length += 1
        self._waiting[asker.host] = self._waiting.get(asker.host, 0) + 1
        if self._length <= self._most:
            return None
        loser = self._with_most_waiting(asker)
        victim = next(reversed(self._hosts[loser.host][loser.connection_id]))
        self.remove(loser, victim)
        return victim

    def next(self) -> _Item:
        """Removes and returns the item whose turn it is. The queue must not be empty."""
        host, connections = next(iter(self._hosts.items()))
        connection_id, items = next(iter(connections.items()))
        item = next(iter(items))
        connections.move_to_end(connection_id)
        self._hosts.move_to_end(host)
        self.remove(Asker(host, connection_id), item)
        return item

    def remove(self, asker: Asker, item: _Item) -> None:
        """Removes the item if it is still there."""
        connections = self._hosts.get(asker.host)
        items = None if connections is None else connections.get(asker.connection_id)
        if connections is None or items is None or item not in items:
            return
        del items[item]
        self._length -= 1
        self._waiting[asker.host] -= 1
        if not items:
            del connections[asker.connection_id]
            self._connections -= 1
        if not connections:
            del self._hosts[asker.host], self._waiting[asker.host]

    def used_share(self, asker: Asker) -> float:
        """Returns which share of its fair part of the queue this asker uses; 1.0 is all of it."""
        connections = self._hosts.get(asker.host)
        if connections is None:
            return 0.0
        of_connection = len(connections.get(asker.connection_id, ()))
        of_host = self._waiting[asker.host]
        return min(of_connection * self._connections, of_host * len(self._hosts)) / self._most

    def _with_most_waiting(self, newcomer: Asker) -> Asker:
        clients = [host for host in self._hosts if host != THE_AGENT.host]
        if not clients:
            return newcomer
        host = max(clients, key=self._waiting.__getitem__)
        connections = self._hosts[host]
        return Asker(host, max(connections, key=lambda connection_id: len(connections[connection_id])))
