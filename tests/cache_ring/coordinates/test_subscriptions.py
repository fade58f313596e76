"""Subscriptions and partitions with readers: leased, bounded, and forgotten in time."""

from cache_ring.coordinates.coordinate_push import PartitionsRead
from cache_ring.peers.peer_server import Subscriptions
from storage.identifiers import Partition
from tests.cache_ring.builders import ORDERS

KEYS = [(ORDERS, Partition(number)) for number in range(10)]


def test_no_subscriber_is_named_after_its_lease() -> None:
    subscriptions: Subscriptions[str] = Subscriptions(limit=10)
    subscriptions.subscribe("ann", KEYS[:2], until_s=10.0)
    subscriptions.subscribe("bob", KEYS[:1], until_s=20.0)

    assert sorted(subscriptions.subscribers(KEYS[0], now_s=9.0)) == ["ann", "bob"]
    assert subscriptions.subscribers(KEYS[0], now_s=10.0) == ["bob"]
    assert (subscriptions.subscribers(KEYS[0], now_s=20.0), len(subscriptions)) == ([], 1)


def test_a_renewed_subscription_counts_once() -> None:
    subscriptions: Subscriptions[str] = Subscriptions(limit=10)
    subscriptions.subscribe("ann", KEYS[:2], until_s=10.0)
    subscriptions.subscribe("ann", KEYS[:2], until_s=20.0)

    assert (len(subscriptions), subscriptions.subscribers(KEYS[0], now_s=15.0)) == (2, ["ann"])


def test_subscriptions_past_the_limit_are_left_out() -> None:
    subscriptions: Subscriptions[str] = Subscriptions(limit=3)

    subscriptions.subscribe("ann", KEYS, until_s=10.0)

    assert len(subscriptions) == 3
    assert subscriptions.subscribers(KEYS[9], now_s=0.0) == []


def test_a_dropped_subscriber_leaves_nothing_behind() -> None:
    subscriptions: Subscriptions[str] = Subscriptions(limit=100)
    subscriptions.subscribe("ann", KEYS, until_s=10.0)
    subscriptions.subscribe("bob", KEYS[:1], until_s=10.0)

    subscriptions.drop("ann")
    subscriptions.drop("nobody")

    assert (len(subscriptions), subscriptions.subscribers(KEYS[0], now_s=0.0)) == (1, ["bob"])


def test_a_partition_is_of_interest_until_some_time_after_its_last_reader() -> None:
    now_s = 0.0
    partitions_read = PartitionsRead(recent_s=10.0, limit=100, clock=lambda: now_s)
    partitions_read.note(KEYS[0], now_s)
    now_s = 5.0
    partitions_read.note(KEYS[1], now_s)
    partitions_read.note(KEYS[0], now_s)
    now_s = 14.9

    assert set(partitions_read.current()) == {KEYS[0], KEYS[1]}
    now_s = 15.0
    assert partitions_read.current() == []


def test_a_first_reader_calls_back_and_the_limit_holds() -> None:
    told: list[int] = []
    partitions_read = PartitionsRead(recent_s=10.0, limit=3, clock=lambda: 0.0)
    partitions_read.when_new(lambda: told.append(len(partitions_read)))

    for key in (KEYS[0], KEYS[0], *KEYS[1:6]):
        partitions_read.note(key, 0.0)

    assert (told, partitions_read.current()) == ([1, 2, 3, 3, 3, 3], KEYS[3:6])
