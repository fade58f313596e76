"""What the client of a schema registry does with each answer, and with none."""

import time

import pytest

from spark_compaction.typed.registry import RegisteredSchema, RegistryAway, SchemaRegistry
from tests.spark_compaction.typed.registry_server import Registry

AVRO = {"schema": '"string"'}


def client(url: str, timeout_s: float = 0.5, attempts: int = 2, job_s: float = 3.0) -> SchemaRegistry:
    return SchemaRegistry(url, user="me:secret", timeout_s=timeout_s, attempts=attempts, job_s=job_s)


def test_a_schema_is_asked_for_once(registry: Registry) -> None:
    registry.schemas[7] = AVRO
    asking = client(registry.url)

    assert asking.schemas([7]) == asking.schemas([7])
    assert registry.asked == ["/schemas/ids/7"]


def test_references_come_before_those_that_rest_on_them(registry: Registry) -> None:
    registry.schemas[1] = {
        "schema": "whole", "references": [{"name": "b", "subject": "s/b", "version": 1}]
    }  # fmt: skip
    registry.subjects["s%2Fb/1"] = {
        "schema": "B", "references": [{"name": "a", "subject": "a", "version": 2}]
    }  # fmt: skip
    registry.subjects["a/2"] = {"schema": "A"}

    found = client(registry.url).schemas([1])[1]

    assert found == RegisteredSchema(kind="avro", text="whole", references={"a": "A", "b": "B"})
    assert list(found.references) == ["a", "b"]


def test_an_id_that_the_registry_does_not_have_is_an_answer(registry: Registry) -> None:
    assert client(registry.url).schemas([9]) == {9: None}


@pytest.mark.parametrize("behaviour", ["hangs", "endless", "fails", "elsewhere"])
def test_a_registry_that_gives_no_schema_costs_bounded_time(registry: Registry, behaviour: str) -> None:
    registry.behaviour = behaviour
    began_s = time.monotonic()

    with pytest.raises(RegistryAway):
        client(registry.url, attempts=100).schemas(range(50))

    assert time.monotonic() - began_s < 5


def test_another_address_is_tried_and_none_is_an_error_that_names_the_setting(registry: Registry) -> None:
    registry.schemas[7] = AVRO

    assert client(f"http://127.0.0.1:1,{registry.url}").schemas([7])[7] is not None
    with pytest.raises(RegistryAway, match="TIDELOG_SCHEMA_REGISTRY_URL"):
        client("").schemas([7])
    with pytest.raises(RegistryAway, match=r"127\.0\.0\.1:1"):
        client("http://127.0.0.1:1").schemas([7])


@pytest.mark.parametrize(
    "answer",
    [{}, {"schema": 1}, {"schema": "x", "schemaType": "THRIFT"}, {"schema": "x", "references": [{}]}],
)
def test_an_answer_without_sense_is_no_schema(registry: Registry, answer: dict[str, object]) -> None:
    registry.schemas[7] = answer

    with pytest.raises(RegistryAway):
        client(registry.url).schemas([7])
