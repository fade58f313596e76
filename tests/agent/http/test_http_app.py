"""Health, metrics, topics and errors over HTTP, on a real sequencer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter

from agent.http.app import create_http_app
from agent.http.parts import HttpParts
from agent.http.readiness import Check
from agent.http.server import HttpServer
from agent.kafka.transport.listener import bound_socket
from sequencer.client import Sequencer
from tests.agent.auditing import an_audit

Client = httpx.AsyncClient
Serve = Callable[..., Client]


@pytest.fixture
async def serve(sequencer: Sequencer) -> AsyncIterator[Serve]:
    """`serve(checks=...)` is a client of an application on the test's database."""
    clients: list[Client] = []

    def start(**changes: Any) -> Client:
        parts = HttpParts(
            **{
                "audit": an_audit(),
                "sequencer": lambda: sequencer,
                "checks": (),
                "cluster": "test",
                "zone": "a",
                "node_id": lambda: 7,
                "registry": CollectorRegistry(),
                "max_partitions_per_topic": 16,
                **changes,
            }
        )
        transport = httpx.ASGITransport(app=create_http_app(parts))
        clients.append(Client(transport=transport, base_url="http://agent", timeout=60))
        return clients[-1]

    yield start
    for client in clients:
        await client.aclose()


async def test_a_topic_is_created_described_altered_and_deleted(serve: Serve) -> None:
    client = serve()

    created = await client.post(
        "/v1/topics", json={"name": "orders", "partitions": 2, "config": {"retention.ms": "1"}}
    )
    altered = await client.patch(
        "/v1/topics/orders",
        json={"partitions": 3, "set": {"retention.bytes": "9"}, "remove": ["retention.ms"]},
    )
    described = await client.get("/v1/topics/orders")
    deleted = await client.delete("/v1/topics/orders")

    assert created.status_code == 201
    assert altered.json()["partitions"] == 3
    assert described.json()["config"] == {"retention.bytes": "9"}
    assert described.json()["offsets"] == [
        {
            "partition": number,
            "log_start_offset": 0,
            "high_watermark": 0,
            "last_stable_offset": 0,
            "history_start_offset": None,
        }
        for number in range(3)
    ]
    assert deleted.status_code == 200
    assert (await client.get("/v1/topics/orders")).status_code == 404


async def test_a_list_is_paged_by_name(serve: Serve) -> None:
    client = serve()
    for name in ("b", "c", "a"):
        await client.post("/v1/topics", json={"name": name})

    first = (await client.get("/v1/topics", params={"limit": 2})).json()
    second = (await client.get("/v1/topics", params={"limit": 2, "after": first["next"]})).json()

    assert [topic["name"] for topic in first["topics"]] == ["a", "b"]
    assert [topic["name"] for topic in second["topics"]] == ["c"]
    assert second["next"] is None


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"name": "no spaces"}, 400, "invalid_topic_name"),
        ({"name": ".."}, 400, "invalid_topic_name"),
        ({"name": "t", "partitions": 0}, 400, "invalid_request"),
        ({"name": "t", "partitions": 17}, 400, "invalid_request"),
        ({"name": "t", "config": {"cleanup.policy": "squash"}}, 400, "invalid_config"),
        (
            {"name": "t", "config": {"cleanup.policy": "compact", "tidelog.history": "log"}},
            400,
            "invalid_config",
        ),
        ({"name": "t", "config": {"no.such": "1"}}, 400, "invalid_config"),
        ({"name": "t", "replicas": 3}, 400, "invalid_request"),
        ({}, 400, "invalid_request"),
        ({"name": "taken"}, 409, "topic_exists"),
    ],
)
async def test_a_refused_creation_says_why_in_json(
    serve: Serve, body: object, status: int, error: str
) -> None:
    client = serve()
    await client.post("/v1/topics", json={"name": "taken"})

    answer = await client.post("/v1/topics", json=body)

    assert answer.status_code == status
    assert answer.json()["error"] == error
    assert len(answer.json()["message"]) > 10


async def test_a_refused_alteration_changes_nothing(serve: Serve) -> None:
    client = serve()
    await client.post("/v1/topics", json={"name": "t", "partitions": 2})

    fewer = await client.patch("/v1/topics/t", json={"partitions": 1})
    bad_config = await client.patch("/v1/topics/t", json={"partitions": 4, "set": {"retention.ms": "soon"}})

    assert fewer.json()["error"] == "invalid_partition_count"
    assert bad_config.json()["error"] == "invalid_config"
    assert (await client.get("/v1/topics/t")).json()["partitions"] == 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("PUT", "/v1/topics", 405),
        ("GET", "/v1/topics/none", 404),
        ("DELETE", "/v1/topics/none", 404),
        ("GET", "/v1/topics?limit=0", 400),
    ],
)
async def test_every_error_is_json_with_a_message(serve: Serve, method: str, path: str, status: int) -> None:
    answer = await serve().request(method, path)

    assert answer.status_code == status
    assert {"error", "message"} <= set(answer.json())


async def test_the_error_for_a_body_without_a_content_type_names_it(serve: Serve) -> None:
    client = serve()

    plain = await client.post("/v1/topics", content=b'{"name": "t"}')
    broken = await client.post("/v1/topics", content=b"{", headers={"content-type": "application/json"})

    assert plain.status_code == 400
    assert "Content-Type: application/json" in plain.json()["message"]
    assert "Content-Type" not in broken.json()["message"]


async def test_the_first_page_links_to_the_documentation(serve: Serve) -> None:
    client = serve()

    described = await client.get((await client.get("/")).json()["described_at"])

    assert "/v1/topics" in described.json()["paths"]


async def test_a_body_that_is_too_large_is_refused_however_it_is_sent(serve: Serve) -> None:
    client = serve(max_body_bytes=1_000)

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    declared = await client.post("/v1/topics", content=b" " * 1_001)
    chunked = await client.post(
        "/v1/topics", content=in_pieces(), headers={"content-type": "application/json"}
    )

    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert chunked.json()["error"] == "too_large"


async def test_the_cluster_names_its_agents(serve: Serve) -> None:
    found = (await serve().get("/v1/cluster")).json()

    assert found["node_id"] == 7
    assert len(found["cluster_id"]) == 22
    assert found["agents"] == []


async def test_without_a_database_requests_say_so_and_live_stays_true(serve: Serve) -> None:
    client = serve(sequencer=lambda: None)

    topics = await client.get("/v1/topics")

    assert topics.status_code == 503
    assert topics.json()["error"] == "sequencer_unavailable"
    assert (await client.get("/live")).status_code == 200


async def test_ready_tells_every_reason(serve: Serve) -> None:
    async def fails() -> None:
        raise RuntimeError("the bucket is away")

    async def hangs() -> None:
        await asyncio.sleep(60)

    async def passes() -> None:
        return None

    checks = (
        Check(name="store", run=fails),
        Check(name="database", run=hangs),
        Check(name="lease", run=passes),
    )

    answer = await serve(checks=checks, check_timeout_s=0.05).get("/ready")

    assert answer.status_code == 503
    assert answer.json()["checks"] == {"store": "the bucket is away", "database": "no answer within 0.05 s"}


async def test_ready_asks_once_for_many_requests(serve: Serve) -> None:
    asked = 0

    async def count() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)

    client = serve(checks=(Check(name="store", run=count),), check_cache_s=30.0)

    answers = await asyncio.gather(*(client.get("/ready") for _ in range(20)))

    assert {answer.status_code for answer in answers} == {200}
    assert asked == 1


async def test_metrics_are_prometheus_text(serve: Serve) -> None:
    registry = CollectorRegistry()
    Counter("tidelog_things_total", "Things", registry=registry).inc(3)

    answer = await serve(registry=registry).get("/metrics")

    assert "tidelog_things_total 3.0" in answer.text


async def test_a_cancelled_start_releases_its_socket() -> None:
    """Otherwise the event loop does not hear the next connection that gets the number of this socket."""
    loop = asyncio.get_running_loop()
    for turns in range(6):
        bound = bound_socket("127.0.0.1", 0)
        number = bound.fileno()
        server = HttpServer(_app_without_sequencer(), bound, shutdown_timeout_s=1.0)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)

        starting.cancel()
        await asyncio.wait({starting})

        bound.close()
        assert not loop.remove_reader(number), f"after {turns} turns of the event loop"


def _app_without_sequencer() -> FastAPI:
    return create_http_app(
        HttpParts(
            audit=an_audit(), sequencer=lambda: None, checks=(), cluster="c", zone="a", node_id=lambda: None
        )
    )


async def test_the_listener_stops_with_a_client_connected() -> None:
    app = _app_without_sequencer()
    with bound_socket("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        server = HttpServer(app, bound, shutdown_timeout_s=1.0)
        await server.start()
        _, idle = await asyncio.open_connection("127.0.0.1", port)
        async with Client(timeout=60) as client:
            live = await client.get(f"http://127.0.0.1:{port}/live")

        async with asyncio.timeout(60):
            await server.stop()
        idle.close()

    assert live.json() == {"live": True}
