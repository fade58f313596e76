"""What goes over Kafka connections, counted at the cost of an addition: one owner per agent, on its event loop."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Traffic(Collector):
    """Plain numbers, which `/metrics` reads when it is asked."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """By API."""
        self.request_bytes = 0
        self.response_bytes = 0

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("tidelog_requests_total", "Kafka requests", labels=["api"])
        for api, count in self.requests.copy().items():
            requests.add_metric([api], count)
        yield requests
        yield CounterMetricFamily("tidelog_request_bytes_total", "Bytes of Kafka requests", value=self.request_bytes)
        yield CounterMetricFamily("tidelog_response_bytes_total", "Bytes of Kafka responses", value=self.response_bytes)
