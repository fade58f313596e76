"""Takes the metrics that clients push, and shows them in `/metrics` (KIP-714).

A metric `org.apache.kafka.producer.x.y` becomes `tidelog_pushed_producer_x_y`, with the client's id and its
instance's. Refusals are counted and not logged: a client that pushes nonsense would fill the log.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from uuid import UUID, uuid4

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.telemetry.instances import (
    LONGEST_TEXT,
    ClientInstances,
    Push,
    Sample,
    Subscription,
    TelemetryFault,
)
from storage.batches.compression import DecompressedTooLarge, DecompressionFailed, decompress
from storage.batches.record_batch import Compression
from storage.threads import Threads

_HELP: Final = "Pushed by clients (KIP-714)"


class Telemetry(Collector):
    """One per agent, registered with its metrics."""

    def __init__(self, settings: AgentSettings, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.subscription = Subscription(
            metrics=tuple(name.strip() for name in settings.telemetry_metrics.split(",") if name.strip()),
            interval_s=settings.telemetry_push_interval_s,
            max_bytes=settings.telemetry_max_bytes,
        )
        self._most_samples = 10 * settings.telemetry_series_per_client
        self._instances = ClientInstances(
            self.subscription,
            settings.telemetry_clients,
            settings.telemetry_series_per_client,
            settings.telemetry_bytes,
        )
        self._metrics = metrics
        # A separate thread: pushes must not delay produce requests.
        self._threads = Threads("telemetry", 1)
        self._clock = clock

    def ask(self, instance_id: UUID | None) -> UUID | TelemetryFault:
        """Returns the id of the instance that asks what to push."""
        answer = self._instances.ask(instance_id, uuid4, self._clock())
        if isinstance(answer, TelemetryFault):
            self._count(answer)
        return answer

    async def push(
        self, push: Push, compression: int, payload: bytes, client_id: str | None
    ) -> TelemetryFault | None:
        """Returns why the push was refused, or None."""
        fault = self._instances.check(push, self._clock())
        if fault is None and payload:
            fault = await self._take(push, Compression(compression), payload, client_id)
        self._count(fault)
        return fault

    def collect(self) -> Iterator[Metric]:
        """Returns every client's latest values."""
        families: dict[str, Metric] = {}
        for instance_id, client_id, values in self._instances.current(self._clock()):
            for (name, attributes), value in values.items():
                family = families.get(name)
                if family is None:
                    family = families[name] = Metric(f"tidelog_pushed_{name}", _HELP, "unknown")
                labels = {**dict(attributes), "client_id": client_id, "client_instance_id": str(instance_id)}
                family.add_sample(family.name, labels, value)
        yield from families.values()

    async def _take(
        self, push: Push, compression: Compression, payload: bytes, client_id: str | None
    ) -> TelemetryFault | None:
        samples = await self._threads.run_for(push.instance_id, partial(self._read, compression, payload))
        if isinstance(samples, TelemetryFault):
            return samples
        assert push.instance_id is not None, "a push without an id was refused"
        beyond = self._instances.take(
            push.instance_id, (client_id or "")[:LONGEST_TEXT], samples, self._clock()
        )
        self._metrics.telemetry_series_dropped.inc(beyond)
        return None

    def _read(self, compression: Compression, payload: bytes) -> list[Sample] | TelemetryFault:
        # Protobuf (see agent/deferred_imports.py).
        from agent.telemetry.otlp import InvalidMetrics, read_samples

        try:
            plain = decompress(memoryview(payload), compression, self.subscription.max_bytes)
            return read_samples(plain.tobytes(), self._most_samples)
        except DecompressedTooLarge:
            return TelemetryFault.TOO_LARGE
        except (DecompressionFailed, InvalidMetrics):
            return TelemetryFault.INVALID_RECORD

    def _count(self, fault: TelemetryFault | None) -> None:
        self._metrics.telemetry_requests.labels("taken" if fault is None else fault.name.lower()).inc()
