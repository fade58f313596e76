"""The connected clients, over HTTP and as a metric: what clients say of themselves, in pages and within
bounds.
"""

from itertools import count

import httpx
import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, generate_latest

from agent.http.app import create_http_app
from agent.http.collectors import ClientMetrics
from agent.http.parts import HttpParts
from agent.kafka.context import ConnectionState
from agent.notices import ProducerNotices
from agent.settings import AgentSettings
from tests.agent.auditing import an_audit
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata
from tests.agent.write_path.test_producer_advice import a_window
from tests.support.waiting import until


async def clients_of(agent: Running) -> list[dict[str, object]]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}", timeout=60) as http:
        listed = (await http.get("/v1/clients")).json()
    assert listed["next"] is None
    connections: list[dict[str, object]] = listed["connections"]
    return connections


@pytest.mark.asyncio(loop_scope="module")
async def test_an_open_connection_is_listed_with_its_clients_name_and_version(agent: Running) -> None:
    wire = await Wire.connect(agent.app.kafka_port)
    about = request(18, 3, client_software_name="a-library", client_software_version="1.2.3-rc.4")

    assert (await wire.ask(about, "me,tidelog_zone=b")).error_code is ErrorCode.none
    await wire.ask(a_metadata(), "me,tidelog_zone=b")
    [listed] = await clients_of(agent)
    counted = agent.metric("tidelog_client_connections", library="a-library", version="1.2.3-rc.4")
    wire.close()

    assert listed["address"] == "{}:{}".format(*wire.writer.get_extra_info("sockname"))
    told = ("client_id", "zone", "software_name", "software_version", "requests", "groups")
    assert [listed[name] for name in told] == ["me,tidelog_zone=b", "b", "a-library", "1.2.3-rc.4", 2, []]
    assert counted == 1
    await until(lambda: agent.metric("tidelog_connections") == 0)
    assert await clients_of(agent) == []


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1\n"), ("ä", "1")]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_name_that_kip_511_does_not_allow_is_refused_and_not_noted(
    agent: Running, name: str, version: str
) -> None:
    wire = await Wire.connect(agent.app.kafka_port)

    answer = await wire.ask(request(18, 3, client_software_name=name, client_software_version=version))
    after = await wire.ask(a_metadata())
    [listed] = await clients_of(agent)
    wire.close()

    assert (answer.error_code, answer.api_keys) == (ErrorCode.invalid_request, ())
    assert after.brokers
    assert (listed["software_name"], listed["software_version"]) == ("", "")
    await until(lambda: agent.metric("tidelog_connections") == 0)


async def test_connections_come_in_pages() -> None:
    states = [ConnectionState(connection_id=number, peer=f"10.0.0.{number}:1") for number in range(1, 8)]
    parts = HttpParts(
        audit=an_audit(),
        sequencer=lambda: None, checks=(), cluster="test", zone="a", node_id=lambda: 7,
        clients=lambda: states,
        registry=CollectorRegistry(),
    )  # fmt: skip
    transport = httpx.ASGITransport(app=create_http_app(parts))
    seen: list[int] = []
    after: int | None = 0
    async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=60) as http:
        while after is not None:
            page = (await http.get("/v1/clients", params={"after": after, "limit": 3})).json()
            assert len(page["connections"]) <= 3
            seen += [connection["connection_id"] for connection in page["connections"]]
            after = page["next"]

        assert (await http.get("/v1/clients", params={"limit": 1001})).status_code == 400
    assert seen == list(range(1, 8))


def test_the_metric_has_bounded_labels_however_many_versions_there_are() -> None:
    states = [
        ConnectionState(connection_id=n, peer="x:1", software_name="lib", software_version=f"{version}")
        for n, version in zip(count(1), [7] * 5 + list(range(100)), strict=False)
    ]
    states.append(ConnectionState(connection_id=0, peer="x:1"))
    registry = CollectorRegistry()
    registry.register(ClientMetrics(lambda: states))

    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]

    assert len(lines) == 50
    assert registry.get_sample_value("tidelog_client_connections", {"library": "lib", "version": "7"}) == 6
    assert sum(float(line.rsplit(" ", 1)[1]) for line in lines) == len(states)


async def test_a_producer_that_its_window_limits_is_advised_over_http_in_the_metrics_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = ConnectionState(
        connection_id=1, peer="x:1", client_id="slow", software_name="apache-kafka-java",
        software_version="4.1.0",
        window=a_window(5, 16_384),
    )  # fmt: skip
    states = [limited, ConnectionState(connection_id=2, peer="x:2", client_id="reader")]
    registry = CollectorRegistry()
    registry.register(ClientMetrics(lambda: states))
    parts = HttpParts(
        audit=an_audit(),
        sequencer=lambda: None, checks=(), cluster="test", zone="a", node_id=lambda: 7,
        clients=lambda: states,
        registry=registry,
    )  # fmt: skip
    transport = httpx.ASGITransport(app=create_http_app(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=60) as http:
        listed = (await http.get("/v1/clients")).json()["connections"]
    notices = ProducerNotices(lambda: states, AgentSettings())
    with caplog.at_level("INFO"):
        notices.look()
        notices.look()

    assert "batch.size=262144 and linger.ms=50" in listed[0]["advice"]
    assert listed[1]["advice"] is None
    labels = {"library": "apache-kafka-java", "version": "4.1.0"}
    assert registry.get_sample_value("tidelog_client_connections_limited", labels) == 1
    assert [getattr(record, "client_id", "") for record in caplog.records] == ["slow"]


def test_a_connection_notes_only_a_few_groups() -> None:
    state = ConnectionState(connection_id=1, peer="x:1")

    for number in range(100):
        state.note_request("me", [f"{number % 50}" * 200])

    assert (state.requests, len(state.groups)) == (100, 8)
    assert max(map(len, state.groups)) <= 255
