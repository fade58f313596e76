"""Which worker runs what, so that `make test` keeps two cores busy to its end and starts costly servers once.

A file's tests run on one worker. So do all tests that need Spark or the shared `stack`, because otherwise
each worker would start its own. The longest files start first, so that no worker waits for a long file at the
end.
"""

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

_ONE_WORKER: Final = {
    "tests/spark_compaction/test_compact.py": "spark",
    "tests/spark_compaction/test_faults.py": "spark",
    "tests/spark_compaction/test_ttl.py": "spark",
    "tests/tidelog/commands/test_commands.py": "spark",
    "tests/tidelog/commands/test_groups_command.py": "stack",
    "tests/tidelog/commands/test_clients_command.py": "stack",
}
_LONGEST_FIRST: Final = (
    "tests/spark_compaction/test_compact.py",
    "tests/spark_compaction/test_faults.py",
    "tests/spark_compaction/test_ttl.py",
    "tests/tidelog/commands/test_commands.py",
    "tests/tidelog/backup/test_backup.py",
    "tests/clients/test_groups.py",
    "tests/clients/test_kafka_tools.py",
    "tests/tidelog/commands/test_groups_command.py",
    "tests/tidelog/commands/test_clients_command.py",
    "tests/clients/test_one_address.py",
    "tests/agent/kafka/forwarding/test_one_address_with_librdkafka.py",
    "tests/clients/test_every_client_reads_every_other.py",
    "tests/tidelog/test_cli.py",
    "tests/tidelog/devstack/test_stack.py",
    "tests/agent/test_app.py",
    "tests/clients/test_topics.py",
    "tests/agent/kafka/transport/test_connection.py",
    "tests/agent/kafka/forwarding/test_forwarding_faults.py",
    "tests/compactor/test_merging.py",
    "tests/storage/stores/test_s3_store.py",
    "tests/clients/test_administration.py",
)


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Like `--dist loadfile`, but keeps some files together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return _ONE_WORKER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LongestFirst:
    # xdist itself orders files by their number of tests.
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    assert all((config.rootpath / file).exists() for file in _LONGEST_FIRST)
    place = {file: number for number, file in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::", 1)[0], len(place)))
