"""`/v1/sinks/...`: what a driver is answered, and what is refused before anything is done."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from agent.http.app import create_http_app
from agent.http.parts import HttpParts
from sequencer.client import Sequencer
from sequencer.commits.coordinates import RunCoordinate
from sequencer.commits.sinks import MAX_TRANSACTIONS
from tests.agent.auditing import an_audit
from tests.sequencer.commits.test_sinks import stable, tasks
from tests.sequencer.commits.test_transactions import a_topic


class Agent:
    """Its HTTP side on the test's database, and the runs that it announced."""

    def __init__(self, client: httpx.AsyncClient, announced: list[RunCoordinate]) -> None:
        self.announced = announced
        self._client = client

    async def post(self, what: str, **changes: Any) -> httpx.Response:
        """An empty first batch, with these changes. None leaves a field out."""
        batch = {
            "sink": "sink",
            "run_id": "run",
            "id_prefix": "sink-tidelog-sink-query-",
            "query_id": "query",
            "batch_id": 0,
            "transactions": [],
            **changes,
        }
        body = {name: value for name, value in batch.items() if value is not None}
        return await self._client.post(f"/v1/sinks/{what}", json=body)


@pytest.fixture
async def agent(sequencer: Sequencer) -> AsyncIterator[Agent]:
    announced: list[RunCoordinate] = []
    parts = HttpParts(
        audit=an_audit(),
        sequencer=lambda: sequencer,
        checks=(),
        cluster="test",
        zone="a",
        node_id=lambda: 7,
        registry=CollectorRegistry(),
        committed=announced.extend,
    )
    transport = httpx.ASGITransport(app=create_http_app(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=60) as client:
        yield Agent(client, announced)


async def written(sequencer: Sequencer, number: int = 2) -> list[dict[str, Any]]:
    """The transactions of tasks that have written a record each, as a driver names them."""
    topic = await sequencer.topics.by_name(["orders"])
    keys = [(topic["orders"].topic_id, 0)] if topic else await a_topic(sequencer, 1)
    return [
        asdict(task)
        for task in await tasks(sequencer, keys, number, prefix="sink-tidelog-sink-query-")  # type: ignore[arg-type]
    ]


def a_transaction(**changes: Any) -> dict[str, Any]:
    return {
        "transactional_id": "sink-tidelog-sink-query-0-0",
        "producer_id": 1,
        "producer_epoch": 0,
        **changes,
    }


async def test_a_commit_is_answered_and_announced_and_its_repeat_is_told_apart(
    agent: Agent, sequencer: Sequencer
) -> None:
    transactions = await written(sequencer)

    first = await agent.post("commit", transactions=transactions)
    announced = list(agent.announced)
    again = await agent.post("commit", transactions=transactions)

    assert (first.status_code, first.json()) == (200, {"committed": "now"})
    assert [run.base_offset for run in announced] == [2, 3]
    assert (again.status_code, again.json()) == (200, {"committed": "before"})
    assert agent.announced == announced


async def test_a_batch_that_cannot_be_committed_says_why(agent: Agent, sequencer: Sequencer) -> None:
    transactions = await written(sequencer)
    await agent.post("abort", transactions=transactions)

    lost = await agent.post("commit", transactions=transactions)
    await agent.post("commit", run_id="another run", batch_id=1)
    await agent.post("commit", run_id="a third run", batch_id=2)
    fenced = await agent.post("commit", run_id="another run", batch_id=3)

    assert (lost.status_code, lost.json()["error"]) == (409, "transactions_lost")
    assert "2 of 2 transactions are not open any more" in lost.json()["message"]
    assert "sink-tidelog-sink-query-0-0, sink-tidelog-sink-query-1-0" in lost.json()["message"]
    assert (fenced.status_code, fenced.json()["error"]) == (409, "fenced")
    [key] = [(run.topic_id, run.partition) for run in agent.announced[:1]]
    assert await stable(sequencer, key) == (4, 4, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"sink": ""},
        {"sink": "x" * 201},
        {"sink": "a\0b", "id_prefix": "a\0b-tidelog-sink-"},
        {"run_id": ""},
        {"run_id": "a\0b"},
        {"id_prefix": "other-tidelog-sink-query-"},
        {"id_prefix": "sink-"},
        {"id_prefix": "sink-query-"},
        {"id_prefix": "sink-tidelog-sink-query"},
        {"id_prefix": "sink-tidelog-sink-a\0-"},
        {"query_id": None},
        {"batch_id": None},
        {"batch_id": -1},
        {"batch_id": 1 << 63},
        {"query_id": "a\0b"},
        {"transactions": [a_transaction(producer_epoch=None)]},
        {"transactions": [a_transaction(transactional_id="orders")]},
        {"transactions": [a_transaction(transactional_id="sink-tidelog-sink-query-0")]},
        {"transactions": [a_transaction(transactional_id="sink-tidelog-sink-query-0-0\n")]},
        {"transactions": [a_transaction(producer_epoch=1 << 15)]},
        {"transactions": [a_transaction(producer_id=-1)]},
        {"transactions": [a_transaction()] * (MAX_TRANSACTIONS + 1)},
        {"unknown": 1},
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    agent: Agent, sequencer: Sequencer, changes: dict[str, Any]
) -> None:
    for what in ("commit", "abort"):
        answer = await agent.post(what, **changes)

        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request"), answer.text
    assert await sequencer.database.read("SELECT 1 FROM sinks") == []


async def test_a_sink_ends_no_transactions_of_clients_whose_ids_begin_with_its_name(
    agent: Agent, sequencer: Sequencer
) -> None:
    """Flink's ids are such: a prefix and two numbers."""
    [key] = await a_topic(sequencer, 1)
    await tasks(sequencer, [key], 2, prefix="app-")

    of_sinks = {"sink": "app", "query_id": None, "batch_id": None}
    refused = [await agent.post(what, **of_sinks, id_prefix="app-") for what in ("commit", "abort")]
    done = [await agent.post(what, **of_sinks, id_prefix="app-tidelog-sink-") for what in ("commit", "abort")]

    assert [answer.status_code for answer in refused] == [400, 400]
    assert [answer.status_code for answer in done] == [200, 200]
    assert (await stable(sequencer, key))[0] == 0
