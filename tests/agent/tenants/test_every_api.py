"""Every served API has an entry in the table of names. Every text of its messages is known to be a name, or
not to be one.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
from kio.index import load_request_schema, load_response_schema

from agent.kafka.api import Api
from agent.kafka.served import APIS
from agent.tenants.api_names import API_NAMES, NOT_NAMES
from agent.tenants.translation import TYPES_OF_NAMES, leaves_of

TEXTS = {"error_message", "batch_index_error_message", "status_detail"}
SERVED = [api for api in APIS if api.key in API_NAMES]


def texts_of(schema: Any) -> Iterator[str]:
    """Yields the fields of an entity, and of those in it, that are texts without a type of names."""
    hints = get_type_hints(schema)
    for field in fields(schema):
        for leaf in leaves_of(hints[field.name]):
            if is_dataclass(leaf):
                yield from texts_of(leaf)
            elif leaf is str:
                yield field.name


def test_every_served_api_has_an_entry() -> None:
    assert {api.key for api in APIS} == API_NAMES.keys()


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_every_text_is_known_to_be_a_name_or_not(api: Api) -> None:
    names = API_NAMES[api.key]
    for version in api.versions:
        if api.serves(version):
            asked = set(texts_of(load_request_schema(api.key, version)))
            answered = set(texts_of(load_response_schema(api.key, version)))
            assert asked <= names.request.keys() | NOT_NAMES
            assert answered <= names.response.keys() | NOT_NAMES | TEXTS


def test_kio_types_topics_groups_and_transactional_ids() -> None:
    assert {kind.__name__ for kind in TYPES_OF_NAMES} == {"TopicName", "GroupId", "TransactionalId"}
