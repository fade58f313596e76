"""How fast each of many clients may do something (pure; KIP-599's token bucket).

As in Kafka, a bucket that is not overdrawn lets one request through, and may be overdrawn by it. Promise: at most
`most_clients` buckets are kept. The one longest unheard is forgotten, and is full again.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class _Bucket:
    tokens: float
    at_s: float


class TokenBuckets:
    """Each bucket gets `per_s` tokens a second, up to `burst`. A rate of 0.0 is no limit."""

    def __init__(self, *, per_s: float, burst: float, most_clients: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._most_clients = most_clients
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def pause_s(self, client: Hashable) -> float:
        """The time in seconds until this client's bucket is no longer overdrawn; 0.0: it is not."""
        bucket = self._buckets.get(client)
        if bucket is None or not self._per_s:
            return 0.0
        return max(0.0, -self._filled(bucket).tokens / self._per_s)

    def take(self, client: Hashable, tokens: int) -> None:
        """Takes tokens, or gives them back if there are fewer than none of them."""
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
