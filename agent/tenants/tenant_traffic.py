"""What the clients of each tenant do at this agent, for `/metrics`.

Promises:
- At most `most_tenants` tenants have series of their own. Others are counted together, under a name that no
  tenant can have.
- A tenant that is deleted loses its series. A cluster without tenants has none.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

OTHER: Final = "(other)"


@dataclass(slots=True)
class _Counts:
    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    failures: int = 0
    throttle_s: float = 0.0


_SERIES: Final[tuple[tuple[str, str, Callable[[_Counts], float]], ...]] = (
    ("requests", "Kafka requests of a tenant's clients", lambda one: one.requests),
    ("request_bytes", "Bytes of these requests", lambda one: one.request_bytes),
    ("response_bytes", "Bytes of their responses", lambda one: one.response_bytes),
    ("failures", "Requests that ended the connection", lambda one: one.failures),
    ("throttle_seconds", "Pauses of clients over a quota", lambda one: one.throttle_s),
)


class TenantTraffic(Collector):
    """One per agent, on its event loop."""

    def __init__(self, most_tenants: int) -> None:
        self._most_tenants = most_tenants
        self._tenants: dict[str, _Counts] = {}

    def note(self, tenant: str, request_bytes: int, response_bytes: int, requests: int) -> None:
        counts = self._of(tenant)
        counts.requests += requests
        counts.request_bytes += request_bytes
        counts.response_bytes += response_bytes

    def note_failure(self, tenant: str) -> None:
        self._of(tenant).failures += 1

    def note_throttle(self, tenant: str, pause_s: float) -> None:
        self._of(tenant).throttle_s += pause_s

    def keep(self, tenants: Collection[str]) -> None:
        """Forgets the tenants that are not among these."""
        self._tenants = {
            name: counts for name, counts in self._tenants.items() if name in tenants or name == OTHER
        }

    def collect(self) -> Iterator[Metric]:
        if not self._tenants:
            return
        found = dict(self._tenants)
        for name, documentation, value in _SERIES:
            family = CounterMetricFamily(f"tidelog_tenant_{name}", documentation, labels=["tenant"])
            for tenant, counts in found.items():
                family.add_metric([tenant], value(counts))
            yield family

    def _of(self, tenant: str) -> _Counts:
        counts = self._tenants.get(tenant)
        if counts is None:
            named = len(self._tenants) - (OTHER in self._tenants)
            name = tenant if named < self._most_tenants else OTHER
            counts = self._tenants.setdefault(name, _Counts())
        return counts
