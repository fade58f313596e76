"""A schema registry that keeps its schemas in a topic: Apicurio Registry, with Avro of confluent-kafka.

The registry has no other storage: when it starts, it reads its topics from the beginning. One agent after the
other is killed while schemas are registered, and the registry is restarted.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.avro import packages
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix, ToolchainAbsent
from tests.support.schema_registry import schema_registry
from tidelog.devstack.stack import Stack

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

_NAME = "apicurio-registry"
_TOPIC = "readings"
_RECORDS = 50


def _schema(fields: int) -> str:
    """A version: the number, and `fields` more with defaults, so that each version may follow the last."""
    more = [{"name": f"field_{number}", "type": "int", "default": number} for number in range(fields)]
    return json.dumps(
        {"type": "record", "name": "Reading", "fields": [{"name": "number", "type": "long"}, *more]}
    )


def _written(version: int) -> list[dict[str, int]]:
    """The records that are written with this version, counted from 0."""
    more = {f"field_{number}": number for number in range(version)}
    return [{"number": version * _RECORDS + index, **more} for index in range(_RECORDS)]


@tried(_NAME, "keeps its schemas in a topic", "Avro of confluent-kafka", "a restart", "an agent dies")
def test_the_registry_knows_its_schemas_after_a_restart_and_the_deaths_of_agents(
    new_stack: Callable[..., Stack], tmp_path: Path, matrix: Matrix
) -> None:
    if shutil.which("java") is None:
        raise ToolchainAbsent(_NAME, "java")
    site = packages.installed()
    stack = new_stack()
    servers = stack.addresses.bootstrap

    with schema_registry(packages.java_of(site), servers, tmp_path) as registry:
        matrix.note_version(_NAME, registry.version())

        def write(version: int) -> None:
            first = str(version * _RECORDS)
            packages.run(site, "write", servers, registry.url, _TOPIC, _schema(version), first, str(_RECORDS))

        write(0)
        for victim in (0, 1):
            stack.kill(victim)
            write(1 + victim)
            stack.restart(victim)
        known = registry.versions(f"{_TOPIC}-value")
        assert known.keys() == {1, 2, 3}

        registry.stop()
        stack.kill(0)
        registry.start()
        assert registry.versions(f"{_TOPIC}-value") == known
        read = packages.run(site, "read", servers, registry.url, _TOPIC, str(3 * _RECORDS))
        stack.restart(0)
        write(3)
        assert len(registry.versions(f"{_TOPIC}-value")) == 4

    records = sorted((json.loads(line) for line in read.splitlines()), key=lambda record: record["number"])
    assert records == [record for version in range(3) for record in _written(version)]
