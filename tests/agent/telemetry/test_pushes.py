"""GetTelemetrySubscriptions and PushTelemetry by hand, and what real clients push, as `/metrics` shows it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import confluent_kafka
import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from storage.batches.compression import compress
from storage.batches.record_batch import Compression
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, running, until_answered
from tests.agent.telemetry.pushes import a_gauge, a_payload, a_sum
from tests.support.java import Java
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pushed_to(module_database_url: str) -> AsyncIterator[Running]:
    """An agent that asks for everything, twice a second."""
    async with running(
        module_database_url, telemetry_metrics="*", telemetry_push_interval_s=0.5, telemetry_max_bytes=65536
    ) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def wire(pushed_to: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(pushed_to.app.kafka_port)
    yield connected
    connected.close()


async def ask(wire: Wire, instance_id: UUID | None = None) -> Any:
    return await wire.ask(request(71, 0, client_instance_id=instance_id))


async def push(
    wire: Wire, asked: Any, payload: bytes, *, compression: int = NONE, **values: Any
) -> ErrorCode:
    given = {
        "client_instance_id": asked.client_instance_id,
        "subscription_id": asked.subscription_id,
        "terminating": False,
        "compression_type": compression,
        "metrics": compress(payload, Compression(compression)) if compression <= ZSTD else payload,
        **values,
    }
    answer = await wire.ask(request(72, 0, **given), client_id="ann")
    return answer.error_code  # type: ignore[no-any-return]


async def test_a_client_gets_its_subscription(wire: Wire) -> None:
    asked = await ask(wire)

    assert asked.error_code is ErrorCode.none
    assert asked.client_instance_id.int > 1
    assert asked.requested_metrics == ("*",)
    assert asked.accepted_compression_types == (ZSTD, LZ4, GZIP, SNAPPY)
    assert (asked.push_interval.total_seconds(), asked.telemetry_max_bytes) == (0.5, 65536)
    assert not asked.delta_temporality


@pytest.mark.parametrize("compression", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
async def test_pushed_metrics_are_shown(pushed_to: Running, wire: Wire, compression: int) -> None:
    asked = await ask(wire)
    payload = a_payload(
        a_gauge("org.apache.kafka.producer.record.queue.time.avg", 1.5, node_id='3"\n'),
        a_sum("org.apache.kafka.producer.connection.creation.total", 7.0),
        group_id="g",
    )

    assert await push(wire, asked, payload, compression=compression) is ErrorCode.none

    labels = {"client_id": "ann", "client_instance_id": str(asked.client_instance_id), "group_id": "g"}
    assert pushed_to.metric("tidelog_pushed_producer_connection_creation_total", **labels) == 7.0
    assert pushed_to.metric("tidelog_pushed_producer_record_queue_time_avg", **labels, node_id='3"\n') == 1.5
    assert 'node_id="3\\"\\n"' in pushed_to.exposition()


async def test_pushes_are_refused_by_the_rules(pushed_to: Running, wire: Wire) -> None:
    payload = a_payload(a_gauge("m", 1.0))

    async def pushed(payload: bytes = payload, **values: Any) -> ErrorCode:
        return await push(wire, await ask(wire), payload, **values)

    assert await pushed(subscription_id=12) is ErrorCode.unknown_subscription_id
    assert await pushed(compression=9) is ErrorCode.unsupported_compression_type
    assert await pushed(b"x" * 65537) is ErrorCode.telemetry_too_large
    assert await pushed(b"\0" * 100_000, compression=ZSTD) is ErrorCode.telemetry_too_large
    assert await pushed(b"no metrics") is ErrorCode.invalid_record
    assert await pushed(b"", metrics=b"no zstd", compression=ZSTD) is ErrorCode.invalid_record
    assert await pushed(client_instance_id=None) is ErrorCode.invalid_request
    assert pushed_to.metric("tidelog_telemetry_requests_total", result="invalid_record") == 2


async def test_asking_and_pushing_too_often_is_throttled(module_database_url: str) -> None:
    async with running(
        module_database_url, zone="o", telemetry_metrics="*", telemetry_push_interval_s=60.0
    ) as patient:
        wire = await Wire.connect(patient.app.kafka_port)
        asked, payload = await ask(wire), a_payload(a_gauge("m", 1.0))

        assert (await ask(wire, asked.client_instance_id)).error_code is ErrorCode.throttling_quota_exceeded
        assert await push(wire, asked, payload) is ErrorCode.none
        assert await push(wire, asked, payload) is ErrorCode.throttling_quota_exceeded
        assert await push(wire, asked, payload, terminating=True) is ErrorCode.none
        assert await push(wire, asked, payload) is ErrorCode.invalid_request
        wire.close()


async def test_a_client_cannot_fill_the_metrics(module_database_url: str) -> None:
    async with running(
        module_database_url,
        zone="q",
        telemetry_series_per_client=5,
        telemetry_clients=3,
        telemetry_metrics="*",
    ) as bounded:
        wire = await Wire.connect(bounded.app.kafka_port)
        for _ in range(6):
            payload = a_payload(*[a_gauge(f"m{number}", 1.0) for number in range(20)])
            assert (
                await push(wire, await ask(wire), payload, subscription_id=0)
                is ErrorCode.unknown_subscription_id
            )
            assert await push(wire, await ask(wire, uuid4()), payload) is ErrorCode.none
        wire.close()

        lines = [line for line in bounded.exposition().splitlines() if line.startswith("tidelog_pushed_m")]
        assert 0 < len(lines) <= 3 * 5
        assert bounded.metric("tidelog_telemetry_series_dropped_total") == 6 * 15


async def test_librdkafka_pushes_what_it_measures(pushed_to: Running) -> None:
    def produce() -> None:
        def is_shown() -> Mapping[str, str]:
            producer.poll(0.1)
            return _shows(pushed_to, "rdkafka-pushes")

        producer = confluent_kafka.Producer(
            {"bootstrap.servers": pushed_to.bootstrap, "client.id": "rdkafka-pushes"}
        )
        producer.produce("pushed-by-librdkafka", b"v")
        assert producer.flush(60) == 0
        wait_until(is_shown)

    await asyncio.to_thread(produce)


async def test_java_pushes_what_it_measures(pushed_to: Running, java: Java, stack_directory: Path) -> None:
    servers = ("--bootstrap-server", pushed_to.bootstrap, "--topic", "pushed-by-java")
    settings = stack_directory / "producer.properties"
    settings.write_text("client.id=java-pushes\n")
    load = ("--max-messages", "5", "--throughput", "2", "--producer.config", str(settings))

    await asyncio.to_thread(java.tool, "VerifiableProducer", *servers, *load)

    await until_answered(lambda: _shown(pushed_to, "java-pushes"))


async def _shown(agent: Running, client_id: str) -> Mapping[str, str]:
    return _shows(agent, client_id)


def _shows(agent: Running, client_id: str) -> dict[str, str]:
    lines = agent.exposition().splitlines()
    found = [
        line for line in lines if line.startswith("tidelog_pushed_") and f'client_id="{client_id}"' in line
    ]
    return dict(line.rsplit(" ", 1) for line in found)
