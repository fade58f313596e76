"""Random alterations and filters of quotas, to a Tidelog agent and to Apache Kafka. Both answer the same."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.agent.read_path.wire import request
from tests.agent.running import Wire, running
from tests.support.apache_kafka import kafka_with_acls
from tests.support.java import Java
from tests.support.seeds import seeds

_ROUNDS = 150
_NAMES = ("a", "b", "c d", "é", None, "")
_TYPES = ("user", "client-id", "ip", "user", "client-id", "topic", "")
_KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
    "other",
)
_VALUES = (1.0, 10.0, 1.5, 0.0, -1.0, 1e10, 2.0**31, 1e19, 1e-7, 100.0000001)
_VALUES_OF = {"request_percentage": (90.0, 1e10, 0.0, -1.0, 2.0**31, 1e19, 100.0000001)}
"""None that would make the test's own connection wait."""


@pytest.fixture(scope="module")
def kafka_port(tmp_path_factory: pytest.TempPathFactory, java: Java) -> Iterator[int]:
    with ExitStack() as opened:
        addresses = opened.enter_context(kafka_with_acls(tmp_path_factory.mktemp("kafka"), java))
        yield int(addresses[1].rpartition(":")[2])


def _entity(chosen: random.Random) -> list[dict[str, Any]]:
    kinds: tuple[str, ...] = chosen.choice((("user",), ("client-id",), ("user", "client-id"), ("ip",), ()))
    if not kinds or chosen.random() < 0.1:
        # Tidelog refuses repeated types.
        kinds = tuple(dict.fromkeys(chosen.choices(_TYPES, k=chosen.randrange(4))))
    addresses = ("10.0.0.1", "::1", None, "")
    return [
        {"entity_type": kind, "entity_name": chosen.choice(addresses if kind == "ip" else _NAMES)}
        for kind in kinds
    ]


def _alteration(chosen: random.Random) -> Any:
    entries: list[dict[str, Any]] = []
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        ops = [
            {
                "key": key,
                "value": chosen.choice(_VALUES_OF.get(key, _VALUES)),
                "remove": chosen.random() < 0.3,
            }
            for key in chosen.choices(_KEYS, k=chosen.choice((0, 1, 1, 1, 2, 3)))
        ]
        entity = _entity(chosen)
        # Of a repeated entity Kafka takes the first alteration, and says that it failed. Tidelog takes none.
        if all(entity != earlier["entity"] for earlier in entries):
            entries.append({"entity": entity, "ops": ops})
    return request(49, chosen.choice((0, 1)), entries=entries, validate_only=chosen.random() < 0.2)


def _filter(chosen: random.Random) -> Any:
    components = [
        {
            "entity_type": chosen.choice(_TYPES),
            "match_type": chosen.choice((0, 0, 1, 2, 3)),
            "match": chosen.choice(("a", "b", "10.0.0.1", None, None, "")),
        }
        for _ in range(chosen.choice((0, 1, 1, 2, 2, 3)))
    ]
    return request(48, chosen.choice((0, 1)), components=components, strict=chosen.random() < 0.5)


def _seen(answer: Any) -> Any:
    """Returns what must be equal. Kafka's answers have no order, and name a repeated entity or type once."""
    if answer.__api_key__ == 49:
        return sorted(
            {
                (int(entry.error_code), tuple(sorted({one.entity_type for one in entry.entity})))
                for entry in answer.entries
            }
        )
    found = (
        None
        if answer.entries is None
        else [
            (
                sorted((one.entity_type, str(one.entity_name)) for one in entry.entity),
                sorted((one.key, one.value) for one in entry.values),
            )
            for entry in answer.entries
        ]
    )
    return answer.error_code, found and sorted(found)


@pytest.mark.parametrize("seed", seeds(2))
async def test_alterations_and_filters_are_answered_as_by_kafka(
    seed: int, database_url: str, kafka_port: int
) -> None:
    chosen = random.Random(seed)
    async with running(database_url) as agent:
        ours, kafkas = await Wire.connect(agent.app.kafka_port), await Wire.connect(kafka_port)
        everything = request(48, 1, components=[], strict=False)
        await _same(everything, ours, kafkas)
        for _ in range(_ROUNDS):
            asked = _alteration(chosen)
            answers = [_seen(await wire.ask(asked)) for wire in (ours, kafkas)]
            assert answers[0] == answers[1], repr((answers, asked))
            await _same(everything, ours, kafkas)
            asked = _filter(chosen)
            answers = [_seen(await wire.ask(asked)) for wire in (ours, kafkas)]
            assert answers[0] == answers[1], repr((answers, asked))
        await _remove_all(kafkas)  # what is left for addresses would refuse the next connection
        ours.close()
        kafkas.close()


async def _remove_all(kafkas: Wire) -> None:
    everything = request(48, 1, components=[], strict=False)
    for _ in range(200):
        found = (await kafkas.ask(everything)).entries
        if not found:
            return
        for entry in found:
            entity = [
                {"entity_type": one.entity_type, "entity_name": one.entity_name} for one in entry.entity
            ]
            ops = [{"key": one.key, "value": 0.0, "remove": True} for one in entry.values]
            await kafkas.ask(request(49, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False))
        await asyncio.sleep(0.05)
    raise AssertionError(found)


async def _same(asked: Any, ours: Wire, kafkas: Wire) -> None:
    """Kafka's brokers hear of a change after its answer."""
    answers: list[Any] = []
    for _ in range(40):
        answers = [_seen(await wire.ask(asked)) for wire in (ours, kafkas)]
        if answers[0] == answers[1]:
            return
        await asyncio.sleep(0.05)
    assert answers[0] == answers[1], repr((answers, asked))
