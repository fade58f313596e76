"""Loaded groups by protocol and state, counted when `/metrics` is read."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.groups.coordinator.coordinator import Coordinator


class GroupMetrics(Collector):
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        groups = GaugeMetricFamily(
            "tidelog_groups", "Groups coordinated by this agent and in memory", labels=["protocol", "state"]
        )
        for (kind, state), count in sorted(self._coordinator.count_by_state().items()):
            groups.add_metric([kind, state], count)
        yield groups
