"""The table of a compacted topic is its state: the last record of each key, unless that is a tombstone."""

import pytest

from spark_compaction.settings import CompactionSettings
from tests.spark_compaction.log import Log, Sent, one, records
from tests.spark_compaction.reading import compact_one, spark_rows
from tests.spark_compaction.state.model import table_rows, written_state

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


async def test_the_table_has_the_last_record_of_each_key(log: Log, settings: CompactionSettings) -> None:
    await log.topic("prices", 2, cleanup_policy="compact")
    await log.write("prices", one(0, *records(40)), one(1, *records(30)))
    await log.write("prices", one(0, Sent(key=b"key-3", value=None), Sent(key=b"other", value=b"1")))
    first = await compact_one(settings, "prices")
    assert await table_rows(settings, "prices") == written_state(log, "prices")
    assert (first.rows, first.rewritten_files) == (7 + 7, 0)

    await log.write("prices", one(0, Sent(key=b"key-1", value=b"new"), Sent(key=b"key-2", value=None)))
    second = await compact_one(settings, "prices")

    assert await table_rows(settings, "prices") == written_state(log, "prices")
    assert await spark_rows(settings, "prices") == written_state(log, "prices")
    assert (second.rows, second.rewritten_files) == (1, 1)
    again = await compact_one(settings, "prices")
    assert (again.rows, again.files, again.advanced) == (0, 0, False)


async def test_a_table_of_which_all_keys_were_deleted_is_empty(
    log: Log, settings: CompactionSettings
) -> None:
    await log.topic("gone", cleanup_policy="compact")
    await log.write("gone", one(0, *records(5)))
    await compact_one(settings, "gone")
    await log.write("gone", one(0, *(Sent(key=b"key-%d" % number, value=None) for number in range(5))))
    done = await compact_one(settings, "gone")
    assert (await table_rows(settings, "gone"), done.advanced) == ([], True)
