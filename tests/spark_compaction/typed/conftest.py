"""A schema registry per test."""

from collections.abc import Iterator

import pytest

from tests.spark_compaction.typed.registry_server import Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    server.start()
    yield server
    server.stop()
