"""Memory for large responses, from before they are made until they are sent.

A response about all topics or groups may take thousands of times what its request takes.

Promises:
- Large responses take no more than the limit together. One that is larger than the limit is made alone.
- The clients of one host take at most half of it. Hosts take turns, and so do the connections of a host.
- A wait ends after `send_timeout_s`, by closing the connection.
"""

import asyncio
from functools import partial
from typing import Final

from agent.kafka.api import CloseConnection
from agent.kafka.context import RequestContext
from storage.fair_limit import FairLimit

_SMALL_BYTES: Final = 65_536
"""A smaller response takes no reserved memory."""


class ResponseMemory:
    """One per agent."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._all = FairLimit(limit_bytes)
        self._hosts: dict[str, FairLimit] = {}
        """Hosts with responses in memory, or with waiting ones."""
        self.all_groups_bytes = 0
        """The size of the last response about all groups: the number of groups is known only once they are
        read.
        """

    @property
    def taken_bytes(self) -> int:
        return self._all.taken

    @property
    def waiting(self) -> int:
        return self._all.waiting + sum(of_host.waiting for of_host in self._hosts.values())

    async def reserve(self, size_bytes: int, context: RequestContext[object]) -> None:
        """Waits for room for the response to this request. It is given back once the response is sent. Raises
        CloseConnection.
        """
        if size_bytes <= _SMALL_BYTES:
            return
        connection = context.connection
        try:
            async with asyncio.timeout(context.settings.send_timeout_s):
                await self.take(connection.network, connection.connection_id, size_bytes)
        except TimeoutError as error:
            raise CloseConnection("too many large responses are in memory") from error
        context.memory.when_released(partial(self.give_back, connection.network, size_bytes))

    async def take(self, host: str, connection_id: int, size_bytes: int) -> None:
        of_host = self._hosts.setdefault(host, FairLimit(self._limit_bytes // 2))
        try:
            await of_host.take(connection_id, size_bytes)
        except BaseException:
            self._forget_idle(host)
            raise
        try:
            await self._all.take(host, size_bytes)
        except BaseException:
            of_host.give_back(size_bytes)
            self._forget_idle(host)
            raise

    def give_back(self, host: str, size_bytes: int) -> None:
        self._hosts[host].give_back(size_bytes)
        self._all.give_back(size_bytes)
        self._forget_idle(host)

    def _forget_idle(self, host: str) -> None:
        of_host = self._hosts[host]
        if not of_host.taken and not of_host.waiting:
            del self._hosts[host]
