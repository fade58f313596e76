"""The doctor's direction from the bucket to the database: why each object under `<cluster>/` exists
(docs/design/garbage.md#the-doctor).

Every key is reserved before it is written. So a listed object without a row is either an orphan, or it was
deleted, and its row afterwards: then a second look-up does not find the object.
"""

from collections.abc import Collection, Sequence

from compactor.diagnosis import Chart, Fault, Finding, Sight
from sequencer.client import Sequencer
from sequencer.history.history import history_prefix
from sequencer.housekeeping.inspection import SegmentRow
from storage.identifiers import ObjectKey, SegmentId
from storage.segments.keys import (
    backups_prefix,
    checkpoints_prefix,
    identity_prefix,
    is_merged,
    journal_prefix,
    ownership_key,
    segment_id_of,
)
from storage.stores.object_store import ObjectInfo, ObjectStore, is_there


class ObjectCensus:
    def __init__(self, sequencer: Sequencer, store: ObjectStore, cluster: str, chart: Chart, *, page: int) -> None:
        self._sequencer = sequencer
        self._store = store
        self._cluster = cluster
        self._chart = chart
        self._page = page

    async def take(self) -> None:
        """Lists all objects, in pages."""
        page: list[ObjectInfo] = []
        async for info in self._store.list(f"{self._cluster}/"):
            page.append(info)
            if len(page) == self._page:
                await self._look_at(page)
                page = []
        await self._look_at(page)

    async def _look_at(self, page: Sequence[ObjectInfo]) -> None:
        self._chart.saw(Sight.OBJECT, len(page))
        self._chart.saw(Sight.MERGED, sum(is_merged(info.key) for info in page))
        unknown = await self._unknown([info.key for info in page], self._chart)
        if not unknown:
            return
        there = [key for key in unknown if await is_there(self._store, key)]
        for key in await self._unknown(there, chart=None):
            self._chart.found(Finding(fault=Fault.ORPHAN_OBJECT, where=key, what="nothing in the database knows it"))

    async def _unknown(self, keys: Collection[ObjectKey], chart: Chart | None) -> list[ObjectKey]:
        """Returns the keys that have no reason to exist. Notes the reasons of the others on the chart."""
        history = [key for key in keys if key.startswith(history_prefix(self._cluster))]
        segments = {key: segment_id_of(key) for key in keys}
        rows = await self._sequencer.inspection.segments_by_id([each for each in segments.values() if each])
        sights: dict[ObjectKey, Sight | None] = {
            key: _sight(key, segment_id, rows) for key, segment_id in segments.items()
        }
        sights.update({key: Sight.IDENTITY for key in keys if key.startswith(identity_prefix(self._cluster))})
        sights.update({key: Sight.IDENTITY for key in keys if key == ownership_key(self._cluster)})
        journal = (journal_prefix(self._cluster), checkpoints_prefix(self._cluster))
        sights.update({key: Sight.JOURNAL for key in keys if key.startswith(journal)})
        sights.update({key: Sight.BACKUP for key in keys if key.startswith(backups_prefix(self._cluster))})
        sights.update(await self._history_sights(history))
        if chart is not None:
            for sight in sights.values():
                if sight is not None:
                    chart.saw(sight)
        return [key for key, sight in sights.items() if sight is None]

    async def _history_sights(self, keys: Sequence[ObjectKey]) -> dict[ObjectKey, Sight | None]:
        """Reads the prefixes first: a job's objects are recorded before its prefix is given up."""
        if not keys:
            return {}
        garbage = self._sequencer.history.garbage
        prefixes = tuple(await garbage.reserved_prefixes())
        recorded = await garbage.recorded(keys)
        sights: dict[ObjectKey, Sight | None] = {}
        for key in keys:
            if key in recorded:
                sights[key] = Sight.HISTORY_RECORDED
            else:
                sights[key] = Sight.HISTORY_RESERVED if key.startswith(prefixes) else None
        return sights


def _sight(key: ObjectKey, segment_id: SegmentId | None, rows: dict[SegmentId, SegmentRow]) -> Sight | None:
    row = rows.get(segment_id) if segment_id else None
    if row is None or row.object_key != key:
        return None
    if row.state == "reserved":
        return Sight.RESERVED
    if row.has_runs:
        return Sight.LIVE
    return Sight.LATE if row.is_tombstone else Sight.GARBAGE
