"""How fast clients may look things up: what one asks of the event loop is missing to all others.

Promises:
- A connection over its rate, or a host over its own, is slowed down and not refused: its requests wait before they are
  looked up. Then it is not read on, since only so many of its requests may be unanswered.
- Connections wait for their own rate first. A connection that asks for much takes no more of its host's than that.
- Answers carry the pause that the next request would wait for.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from agent.kafka.transport.token_buckets import TokenBuckets
from agent.settings import AgentSettings
from sequencer.database.fair_queue import ASKED_BY

_PARTITIONS_OF_A_LOOKUP: Final = 100
"""A request for many partitions counts as one look-up for each so many."""


class LookupPace:
    """One per agent."""

    def __init__(self, settings: AgentSettings, clock: Callable[[], float]) -> None:
        most = settings.max_connections + settings.max_forwarded_connections
        burst_s = settings.lookup_burst_s
        rates = (settings.lookups_per_connection_s, settings.lookups_per_host_s)
        self._of_connections, self._of_hosts = (
            TokenBuckets(per_s=per_s, burst=per_s * burst_s, most_clients=most, clock=clock) for per_s in rates
        )

    async def wait(self, partitions: int) -> None:
        """Until the client of this request may look up so many partitions. Those of a small request count as one
        look-up."""
        asker, lookups = ASKED_BY.get(), 1 + partitions // _PARTITIONS_OF_A_LOOKUP
        for buckets, client in ((self._of_connections, asker.connection_id), (self._of_hosts, asker.host)):
            pause_s = buckets.pause_s(client)
            buckets.take(client, lookups)
            if pause_s:
                await asyncio.sleep(pause_s)

    def pause_ms(self) -> int:
        asker = ASKED_BY.get()
        pause_s = max(self._of_connections.pause_s(asker.connection_id), self._of_hosts.pause_s(asker.host))
        return round(pause_s * 1000)
