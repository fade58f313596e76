"""Erasing from a compacted topic while an agent cleans it."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from compactor.cleaning import Cleaner, CleaningDiscoveryJob
from compactor.metrics import CleaningMetrics
from erasure.report import ErasureProgress
from tests.compactor.builders import settings as small_steps
from tests.erasure.conftest import SECRET, Place
from tests.spark_compaction.log import CLUSTER, Sent, one


async def test_an_erasure_waits_for_what_a_cleaning_has_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the cleaned object one stretch is published. What was erased must not lie beside it."""
    config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    await place.log.topic("orders", 1, **config)
    await place.log.write("orders", one(0, Sent(key=b"a"), Sent(key=b"a"), Sent(key=b"K", value=SECRET)))
    await place.log.write("orders", one(0, *(Sent(key=b"b", value=bytes(2000)) for _ in range(2))))
    chosen = small_steps(merge_run_bytes=1024, reservation_lease_s=0.1)
    await CleaningDiscoveryJob(place.sequencer, chosen).step(None)
    has_read, may_go_on = asyncio.Event(), asyncio.Event()
    reserve = place.sequencer.reservations.reserve

    async def gated(*given: object) -> None:
        has_read.set()
        await may_go_on.wait()
        await reserve(*given)  # type: ignore[arg-type]

    def waits(progress: ErasureProgress) -> None:
        if progress.stage == "waiting for other jobs":
            loop.call_soon_threadsafe(may_go_on.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(place.sequencer.reservations, "reserve", gated)
    metrics = CleaningMetrics(CollectorRegistry())
    cleaning = asyncio.create_task(
        Cleaner(place.sequencer, place.store, CLUSTER, chosen, metrics).clean_once()
    )
    await has_read.wait()
    async with place.kept():
        await place.erase(b"K", on_progress=waits)
        may_go_on.set()
        await asyncio.wait([cleaning], timeout=60)

    assert await place.objects_holding(b"K") == []
    assert await place.is_healthy()


async def test_an_erasure_waits_for_what_a_killed_cleaning_uploaded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    await place.log.topic("orders", 1, **config)
    await place.log.write("orders", one(0, Sent(key=b"a"), Sent(key=b"a"), Sent(key=b"K", value=SECRET)))
    chosen = small_steps(reservation_lease_s=8.0)
    await CleaningDiscoveryJob(place.sequencer, chosen).step(None)

    async def killed(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(place.sequencer.merges, "publish", killed)
    metrics = CleaningMetrics(CollectorRegistry())
    with pytest.raises(asyncio.CancelledError):
        await Cleaner(place.sequencer, place.store, CLUSTER, chosen, metrics).clean_once()
    monkeypatch.undo()
    assert len(await place.objects_holding(b"K")) == 2

    async with place.kept():
        await place.erase(b"K")

    assert await place.objects_holding(b"K") == []
