"""What was erased does not come back with a backup or from the bucket, and nothing else is lost."""

import pytest

from erasure.settings import ErasureSettings
from recovery.plan import Source
from storage.segments.keys import checkpoints_prefix, journal_prefix
from tests.compactor.builders import CLUSTER
from tests.erasure import conftest as erasures
from tests.erasure.test_raw_log import left_of, rows_of, write
from tests.recovery.conftest import Place
from tests.recovery.test_from_the_bucket import begin, destroy
from tests.recovery.test_recover import is_healthy
from tests.spark_compaction.log import Log

pytestmark = pytest.mark.superuser


@pytest.fixture
async def erasing(place: Place) -> erasures.Place:
    """The same cluster as `place`."""
    settings = ErasureSettings(
        database_url=place.database_url, store_url=place.store_url, erase_poll_s=0.05, erase_timeout_s=60
    )
    found = erasures.Place(log=Log(sequencer=place.sequencer, store=place.store), settings=settings)
    await found.log.topic("orders", 2, retention_ms="-1")
    await write(found, 6)
    return found


async def test_a_backup_from_before_gets_the_rewritten_objects(place: Place, erasing: erasures.Place) -> None:
    backup = place.back_up()
    async with erasing.kept():
        await erasing.erase(b"K")
    for prefix in (journal_prefix(CLUSTER), checkpoints_prefix(CLUSTER)):  # else it says more than the backup
        await place.store.delete([info.key async for info in place.store.list(prefix)])

    place.restore(backup)
    report = await place.recover()

    assert (report.missing_objects, report.gone) == (6, 0)
    assert await rows_of(erasing) == left_of(erasing)
    assert await erasing.objects_holding(b"K") == []
    assert await is_healthy(place)


async def test_the_journal_does_not_name_them_any_more(place: Place, erasing: erasures.Place) -> None:
    await begin(place)
    async with erasing.kept():
        await erasing.erase(b"K")

    destroy(place)
    report = await place.recover()

    assert (report.source, report.is_lossless) == (Source.JOURNAL, True)
    assert await rows_of(erasing) == left_of(erasing)
    assert await erasing.objects_holding(b"K") == []
    assert await is_healthy(place)
