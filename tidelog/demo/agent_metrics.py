"""The agents' own figures, summed over the agents, from their `/metrics`."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tidelog.errors import UserError


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """Samples by name and labels, each the sum over the agents asked."""

    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        wanted = labels.items()
        return sum(value for (sample, found), value in self.samples.items() if sample == name and wanted <= set(found))

    def quantile_s(self, histogram: str, quantile: float) -> float | None:
        """Interpolated within its bucket, as Prometheus does; None without observations."""
        by_bound: dict[float, float] = defaultdict(float)
        for (sample, labels), value in self.samples.items():
            if sample == f"{histogram}_bucket":
                by_bound[float(dict(labels)["le"])] += value
        bounds = sorted(by_bound.items())
        if not bounds or bounds[-1][1] == 0:
            return None
        rank = quantile * bounds[-1][1]
        lower, below = 0.0, 0.0
        for upper, count in bounds:
            if count >= rank:
                inside = count - below
                return (
                    lower if upper == float("inf") or not inside else lower + (upper - lower) * (rank - below) / inside
                )
            lower, below = upper, count
        return lower


def read_agent_metrics(http_urls: Iterable[str], timeout_s: float = 10.0) -> AgentMetrics:
    """Asks every agent; raises `UserError` if one does not answer."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for url in http_urls:
        try:
            text = httpx.get(f"{url}/metrics", timeout=timeout_s).raise_for_status().text
        except httpx.HTTPError as error:
            raise UserError(f"No metrics from {url}: {error}") from None
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name, tuple(sorted(sample.labels.items()))] += sample.value
    return AgentMetrics(samples)
