"""Metrics that are collected when `/metrics` is read: the counts of the read side, and the clients'
libraries.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.kafka.context import ConnectionState
from agent.read_path.reads import ReadPath
from agent.write_path.producer_window import advice
from cache_ring.pages.page_cache import PageCache
from cache_ring.pages.page_reader import PageReader
from cache_ring.peers.peer_server import PeerServer
from cache_ring.ring.peer_watch import PeerWatch


class ReadMetrics(Collector):
    """The parts of the read side count in plain integers on their hot paths. A count `x` of a part becomes
    `tidelog_<part>_<x>_total`. Register it once per agent.
    """

    def __init__(self, pages: PageReader, reads: ReadPath, peer_server: PeerServer, watch: PeerWatch) -> None:
        self._counts: Mapping[str, Any] = {
            "read": reads.counts,
            "read_ahead": reads.read_ahead.counts,
            "store": pages.pages.counts,
            "peer_client": pages.peers.counts,
            "peer_server": peer_server.counts,
            "peer_watch": watch.counts,
        }
        self._watch = watch
        self._caches: Mapping[str, PageCache[Any]] = {
            "tail": pages.pages.tail_cache,
            "catch_up": pages.pages.catch_up_cache,
            "peer_ranges": pages.range_cache,
        }

    def collect(self) -> Iterator[Metric]:
        """Returns the present counts."""
        for part, counts in self._counts.items():
            for name, value in _values(counts):
                yield CounterMetricFamily(f"tidelog_{part}_{name}", _sentence(part, name), value=value)
        suspected = len(self._watch.suspected)
        yield GaugeMetricFamily(
            "tidelog_peers_suspected", "Agents that no clients are sent to now", value=suspected
        )
        kept = GaugeMetricFamily(
            "tidelog_page_cache_bytes", "Bytes of pages kept in memory", labels=["cache"]
        )
        families: dict[str, CounterMetricFamily] = {}
        for cache, pages in self._caches.items():
            kept.add_metric([cache], pages.kept_bytes)
            for name, value in _values(pages.counts):
                family = families.get(name)
                if family is None:
                    text = _sentence("page cache", name)
                    family = CounterMetricFamily(f"tidelog_page_cache_{name}", text, labels=["cache"])
                    families[name] = family
                family.add_metric([cache], value)
        yield kept
        yield from families.values()


def _values(counts: Any) -> Iterator[tuple[str, int]]:
    return ((field.name, getattr(counts, field.name)) for field in fields(counts))


def _sentence(part: str, name: str) -> str:
    return f"{part.replace('_', ' ')}: {name.replace('_', ' ')}".capitalize()


_MOST_PAIRS: Final = 50
_UNKNOWN: Final = ("unknown", "")
_OTHER: Final = ("other", "")


class ClientMetrics(Collector):
    """Connections by the client's library and version. Register it once per agent.

    Promise: at most `_MOST_PAIRS` pairs of labels. Pairs with the fewest connections are counted together as
    `other`.
    """

    def __init__(self, clients: Callable[[], Iterable[ConnectionState]]) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        """Returns the present counts."""
        clients = list(self._clients())
        yield _family(
            "tidelog_client_connections", "Open connections by the client's library and version", clients
        )
        yield _family(
            "tidelog_client_connections_limited",
            "Connections of producers that their own windows limit (`tidelog clients` says what to set)",
            [client for client in clients if advice(client.window, client.software_name) is not None],
        )


def _family(name: str, documentation: str, clients: Sequence[ConnectionState]) -> GaugeMetricFamily:
    """Counts the connections of each library and version."""
    counted = Counter(
        (client.software_name, client.software_version) if client.software_name else _UNKNOWN
        for client in clients
    )
    told = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    if len(told) > _MOST_PAIRS:
        rest = sum(count for _, count in told[_MOST_PAIRS - 1 :])
        told = [*told[: _MOST_PAIRS - 1], (_OTHER, rest)]
    family = GaugeMetricFamily(name, documentation, labels=["library", "version"])
    for labels, count in told:
        family.add_metric(list(labels), count)
    return family
