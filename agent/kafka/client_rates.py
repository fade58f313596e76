"""Limits how fast each client may do something (`TokenBuckets`, pure), and how fast it may look things up
(`LookupPace`), because each lookup takes the event loop's time from all others.

Promises of `LookupPace`:
- A connection or a host over its rate is slowed down and not refused: its requests wait before they are
  looked up. Then its socket is not read, because only a few of its requests may be unanswered.
- A connection waits for its own rate first, so it takes no more of its host's rate than its own.
- Responses carry the pause that the next request would wait for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from agent.settings import AgentSettings
from sequencer.database.fair_queue import ASKED_BY


@dataclass(slots=True, kw_only=True)
class _Bucket:
    tokens: float
    at_s: float


class TokenBuckets:
    """Buckets as in KIP-599. Each gets `per_s` tokens a second, up to `burst`. A rate of 0.0 is no limit.

    As in Kafka, a bucket that is not overdrawn lets one request through, and the request may overdraw it.
    Promise: at most `most_clients` buckets are kept. Past that, the client that was silent longest is
    forgotten, and its bucket is full again.
    """

    def __init__(self, *, per_s: float, burst: float, most_clients: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._most_clients = most_clients
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def pause_s(self, client: Hashable) -> float:
        """Returns the time in seconds until this client's bucket is no longer overdrawn. 0.0: it is not
        overdrawn.
        """
        bucket = self._buckets.get(client)
        if bucket is None or not self._per_s:
            return 0.0
        return max(0.0, -self._filled(bucket).tokens / self._per_s)

    def take(self, client: Hashable, tokens: int) -> None:
        """Takes tokens. A negative number gives them back."""
        if not self._per_s:
            return
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(tokens=self._burst, at_s=self._clock())
        self._filled(bucket).tokens -= tokens
        self._buckets.move_to_end(client)
        while len(self._buckets) > self._most_clients:
            self._buckets.popitem(last=False)

    def _filled(self, bucket: _Bucket) -> _Bucket:
        now_s = self._clock()
        bucket.tokens = min(self._burst, bucket.tokens + (now_s - bucket.at_s) * self._per_s)
        bucket.at_s = now_s
        return bucket


_PARTITIONS_OF_A_LOOKUP: Final = 100
"""A request for many partitions counts as one lookup for each of these."""


class LookupPace:
    """One per agent."""

    def __init__(self, settings: AgentSettings, clock: Callable[[], float]) -> None:
        most = settings.max_connections + settings.max_forwarded_connections
        burst_s = settings.lookup_burst_s
        rates = (settings.lookups_per_connection_s, settings.lookups_per_host_s)
        self._of_connections, self._of_hosts = (
            TokenBuckets(per_s=per_s, burst=per_s * burst_s, most_clients=most, clock=clock)
            for per_s in rates
        )

    async def wait(self, partitions: int) -> None:
        """Waits until the client of this request may look up this many partitions. Those of a small request
        count as one lookup.
        """
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
