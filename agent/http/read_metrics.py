"""The read side's counts as metrics. The parts count in plain integers on their hot paths; they are read when
`/metrics` is asked for.

A count `x` of a part becomes `tidelog_<part>_<x>_total`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.read_path.reads import ReadPath
from cache_ring.pages.page_cache import PageCache
from cache_ring.pages.page_reader import PageReader
from cache_ring.peers.peer_server import PeerServer
from cache_ring.ring.peer_watch import PeerWatch


class ReadMetrics(Collector):
    """Register it once per agent."""

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
        """What there is to tell now."""
        for part, counts in self._counts.items():
            for name, value in _values(counts):
                yield CounterMetricFamily(f"tidelog_{part}_{name}", _sentence(part, name), value=value)
        suspected = len(self._watch.suspected)
        yield GaugeMetricFamily("tidelog_peers_suspected", "Agents that no clients are sent to now", value=suspected)
        kept = GaugeMetricFamily("tidelog_page_cache_bytes", "Bytes of pages kept in memory", labels=["cache"])
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
