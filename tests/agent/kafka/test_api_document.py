"""The page about Kafka's protocol agrees with the handlers."""

from kio.schema.index import api_key_map

from agent.kafka.api_document import PAGE, document
from agent.kafka.served import APIS, NOT_SERVED


def test_the_page_is_as_the_handlers_say() -> None:
    assert PAGE.read_text() == document(APIS), "docs/kafka-api.md is stale: run `make docs`"


def test_every_key_of_kafka_is_served_or_named_with_a_reason() -> None:
    served = [api.key for api in APIS]

    assert len(served) == len(set(served))
    assert not set(served) & NOT_SERVED.keys()
    assert set(served) | NOT_SERVED.keys() == {int(key) for key in api_key_map}


def test_names_are_kafkas() -> None:
    names = {api.key: api.name for api in APIS} | {key: found.name for key, found in NOT_SERVED.items()}

    for key, name in names.items():
        assert name.lower() == api_key_map[key].replace("_", ""), key
