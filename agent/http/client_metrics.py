"""Connections by the client's library and version as a metric, counted when `/metrics` is asked for.

Promises at most `_MOST_PAIRS` pairs of labels: those with the fewest connections are counted together as `other`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.kafka.context import ConnectionState
from agent.write_path.producer_advice import advice

_MOST_PAIRS: Final = 50
_UNKNOWN: Final = ("unknown", "")
_OTHER: Final = ("other", "")


class ClientMetrics(Collector):
    """Register it once per agent."""

    def __init__(self, clients: Callable[[], Iterable[ConnectionState]]) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        """What there is to tell now."""
        clients = list(self._clients())
        yield _family("tidelog_client_connections", "Open connections by the client's library and version", clients)
        yield _family(
            "tidelog_client_connections_limited",
            "Connections of producers that their own windows limit (`tidelog clients` says what to set)",
            [client for client in clients if advice(client.window, client.software_name) is not None],
        )


def _family(name: str, documentation: str, clients: Sequence[ConnectionState]) -> GaugeMetricFamily:
    """The connections of each library and version."""
    counted = Counter(
        (client.software_name, client.software_version) if client.software_name else _UNKNOWN for client in clients
    )
    told = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    if len(told) > _MOST_PAIRS:
        rest = sum(count for _, count in told[_MOST_PAIRS - 1 :])
        told = [*told[: _MOST_PAIRS - 1], (_OTHER, rest)]
    family = GaugeMetricFamily(name, documentation, labels=["library", "version"])
    for labels, count in told:
        family.add_metric(list(labels), count)
    return family
