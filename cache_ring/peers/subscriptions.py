"""The subscribers to each partition's commits, with their leases. Pure: the caller owns the clock.

Promises: at most `limit` (partition, subscriber) pairs are kept. A subscriber is not named after its lease.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from sequencer.commits.coordinates import PartitionKey

Subscriber = TypeVar("Subscriber", bound=Hashable)


class Subscriptions(Generic[Subscriber]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._of_partition: dict[PartitionKey, dict[Subscriber, float]] = {}
        self._of_subscriber: dict[Subscriber, set[PartitionKey]] = {}

    def __len__(self) -> int:
        return self._size

    def subscribe(self, subscriber: Subscriber, partitions: Iterable[PartitionKey], until_s: float) -> None:
        """Subscribes or renews. What exceeds the limit is left out."""
        own = self._of_subscriber.setdefault(subscriber, set())
        for key in partitions:
            if key not in own:
                if self._size >= self._limit:
                    continue
                own.add(key)
                self._size += 1
            self._of_partition.setdefault(key, {})[subscriber] = until_s

    def subscribers(self, key: PartitionKey, now_s: float) -> list[Subscriber]:
        """Returns the subscribers with a valid lease, and drops the others."""
        leases = self._of_partition.get(key)
        if leases is None:
            return []
        for subscriber in [subscriber for subscriber, until_s in leases.items() if until_s <= now_s]:
            self._remove(subscriber, key)
        return list(leases)

    def drop(self, subscriber: Subscriber) -> None:
        """Drops a subscriber, e.g. because its connection is gone."""
        for key in tuple(self._of_subscriber.get(subscriber, ())):
            self._remove(subscriber, key)
        self._of_subscriber.pop(subscriber, None)

    def _remove(self, subscriber: Subscriber, key: PartitionKey) -> None:
        leases = self._of_partition[key]
        del leases[subscriber]
        if not leases:
            del self._of_partition[key]
        self._of_subscriber[subscriber].discard(key)
        self._size -= 1
