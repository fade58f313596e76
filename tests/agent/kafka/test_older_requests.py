"""Handlers read requests of every version that they serve in the same way."""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from kio.index import load_request_schema

from agent.kafka.api import Api
from agent.kafka.older_requests import complete
from agent.kafka.served import APIS

EVERY_VERSION = [
    (api, version)
    for api in APIS
    if api.code.decode is None
    for version in api.versions
    if api.serves(version)
]


def entity_in(of_type: Any) -> Any:
    """The class of a request or of its entries that a type names."""
    if isinstance(of_type, type) and (is_dataclass(of_type) or getattr(of_type, "_is_protocol", False)):
        return of_type
    return next((found for part in get_args(of_type) if (found := entity_in(part)) is not None), None)


def pairs(schema: Any, wanted: Any) -> Iterator[tuple[Any, Any]]:
    """kio's classes of a version, each with the type as which the handler reads it."""
    yield schema, wanted
    own_types = get_type_hints(schema)
    for name, of_type in get_type_hints(wanted).items():
        if name in own_types and not name.startswith("__") and (entity := entity_in(of_type)) is not None:
            yield from pairs(entity_in(own_types[name]), entity)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_every_version_has_what_its_handler_reads(api: Api, version: int) -> None:
    schema = load_request_schema(api.key, version)

    complete(schema, api.code.request)

    for found, wanted in pairs(schema, entity_in(api.code.request)):
        for name in get_type_hints(wanted):
            assert hasattr(found, name), f"{found} lacks {name}"


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_defaults_are_those_of_the_versions_that_have_the_field(api: Api, version: int) -> None:
    schema = load_request_schema(api.key, version)
    for found, wanted in pairs(schema, entity_in(api.code.request)):
        if is_dataclass(wanted):
            continue
        for field in fields(found):
            default = getattr(wanted, field.name, MISSING)
            if MISSING not in (default, field.default):
                assert default == field.default, f"{found}.{field.name}"


def test_an_older_request_reads_as_the_newest_version_with_defaults() -> None:
    heartbeat = next(api for api in APIS if api.name == "Heartbeat")
    schema = load_request_schema(heartbeat.key, 0)
    complete(schema, heartbeat.code.request)

    read: Any = schema(group_id="readers", generation_id=3, member_id="ann")  # type: ignore[call-arg]

    assert (read.group_id, read.group_instance_id) == ("readers", None)
    assert "group_instance_id" not in {field.name for field in fields(read)}


def test_a_field_without_a_default_must_be_in_every_version() -> None:
    class Wanted:
        _is_protocol = True
        never_there: str

    with pytest.raises(LookupError, match="has no never_there"):
        complete(load_request_schema(12, 0), Wanted)
