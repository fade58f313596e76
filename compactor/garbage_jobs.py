"""The garbage jobs: they find garbage, doom it and delete its objects
(docs/design/garbage.md#when-an-object-may-be-deleted). No other code deletes objects.

Promises:
- Every step can be repeated after a crash at any point: a deleted object is deleted again, a row that has
  moved on is left alone.
- Nothing is doomed or deleted unless the bucket was confirmed to be this database's just before
  (`sequencer/cluster/ownership.py`).
"""

import logging
from collections.abc import Sequence
from uuid import UUID

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.history.history_garbage import EndedJob
from sequencer.housekeeping.garbage import BEFORE_ALL, DoomingPaused, DoomingRules, PartitionRules
from storage.encryption.key_objects import KeyObjects
from storage.identifiers import ObjectKey, SegmentId
from storage.stores.object_store import ObjectStore

log = logging.getLogger("tidelog")


class GarbageScanJob:
    """Goes over all segments in id order, and starts the grace period of segments that nothing refers to."""

    name = "garbage-scan"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.garbage_interval_s
        self._sequencer = sequencer
        self._cap = settings.garbage_segments_per_step

    async def step(self, progress: str | None) -> Step:
        after = BEFORE_ALL if progress is None else SegmentId(UUID(progress))
        page = await self._sequencer.garbage.mark_unreferenced(after, self._cap)
        more = page.last_seen is not None
        return Step(
            progress=str(page.last_seen) if more else None, more=more, done={"unreferenced": page.marked}
        )


class DoomingJob:
    """Dooms expired reservations, and garbage whose grace period is over, unless an outage or a failover was
    seen.

    A segment that was once committed also waits for a complete checkpoint of the journal that no longer
    refers to it, and for the restore horizon. After an erasure it does not wait for the latter."""

    name = "dooming"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.dooming_interval_s
        self._sequencer = sequencer
        self._grace_s = settings.committed_grace_s
        self._erased_grace_s = settings.garbage_grace_s
        self._after_checkpoint = settings.restore_horizon_s > 0
        self._cap = settings.garbage_segments_per_step
        self._rules = DoomingRules(
            reservation_lease_s=settings.reservation_lease_s,
            outage_after_s=settings.database_outage_after_s,
            failover_hold_s=settings.failover_hold_s,
        )
        self._outage_seen = False
        self._paused_for: str | None = None

    def database_was_away(self) -> None:
        """Agents could not commit either: the next check of the database pauses dooming for a lease."""
        self._outage_seen = True

    async def step(self, progress: str | None) -> Step:
        doomed = await self._sequencer.garbage.doom(
            self._rules,
            grace_s=self._grace_s,
            erased_grace_s=self._erased_grace_s,
            cap=self._cap,
            outage_seen=self._outage_seen,
            after_checkpoint=self._after_checkpoint,
        )
        self._outage_seen = False
        if isinstance(doomed, DoomingPaused):
            if self._paused_for != doomed.reason:
                log.info("dooming pauses", extra={"reason": doomed.reason, "pause_s": round(doomed.pause_s)})
            self._paused_for = doomed.reason
            return Step(progress=progress)
        self._paused_for = None
        return Step(
            progress=progress,
            more=self._cap in (doomed.reservations, doomed.unreferenced),
            done={"reservations": doomed.reservations, "unreferenced": doomed.unreferenced},
        )


class GarbageDeletionJob:
    """Deletes the objects of doomed segments, and deletes them again when no upload can arrive any more. Then
    drops their tombstones. Drops outcomes when no commit can be repeated any more."""

    name = "garbage-deletion"

    def __init__(self, sequencer: Sequencer, store: ObjectStore, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.garbage_interval_s
        self._sequencer = sequencer
        self._garbage = sequencer.garbage
        self._store = store
        self._settings = settings
        self._cap = settings.garbage_segments_per_step
        self._partitions = PartitionRules(
            width_s=settings.tombstone_partition_s, lock_timeout_ms=settings.partition_lock_timeout_ms
        )

    async def step(self, progress: str | None) -> Step:
        deleted = await self._delete()
        forgotten, more_tombstones = await self._delete_again_and_forget()
        more_outcomes = await self._garbage.forget_outcomes(
            outcome_retention_s=self._settings.outcome_retention_s,
            outage_after_s=self._settings.database_outage_after_s,
            partitions=self._partitions,
        )
        lapsed = await self._sequencer.holds.purge_lapsed(
            older_than_s=self._settings.garbage_grace_s, cap=self._cap
        )
        return Step(
            progress=progress,
            more=self._cap in (deleted, lapsed) or more_tombstones or more_outcomes,
            done={"deleted": deleted, "forgotten": forgotten},
        )

    async def _delete(self) -> int:
        due = await self._garbage.due_for_deletion(grace_s=self._settings.garbage_grace_s, cap=self._cap)
        if not due:
            return 0
        await _delete_owned(self._sequencer, self._store, [each.object_key for each in due])
        return await self._garbage.bury(
            [each.segment_id for each in due],
            outcome_retention_s=self._settings.outcome_retention_s,
            partitions=self._partitions,
        )

    async def _delete_again_and_forget(self) -> tuple[int, bool]:
        """Returns how many objects were deleted again, and whether there may be more."""
        page = await self._garbage.due_tombstones(
            late_write_window_s=self._settings.late_write_window_s, cap=self._cap
        )
        if page is None:
            return 0, False
        if page.due:
            await _delete_owned(self._sequencer, self._store, [each.object_key for each in page.due])
        return len(page.due), await self._garbage.sweep(page, self._partitions)


class KeyCopiesJob:
    """Deletes the bucket's copies of the keys of deleted topics at once, and again when no late write can
    bring them back. Deletes copies of keys that were never finished."""

    name = "key-copies"

    def __init__(
        self, sequencer: Sequencer, store: ObjectStore, cluster: str, settings: HousekeeperSettings
    ) -> None:
        self.interval_s = settings.garbage_interval_s
        self._sequencer = sequencer
        self._rows = sequencer.topic_keys
        self._objects = KeyObjects(store, cluster)
        self._late_write_window_s = settings.late_write_window_s
        self._cap = settings.garbage_segments_per_step

    async def step(self, progress: str | None) -> Step:
        due = await self._rows.copies_to_delete(late_write_window_s=self._late_write_window_s, cap=self._cap)
        if due:
            async with self._sequencer.ownership.demanded():
                await self._objects.delete((key.topic_id, key.key_id) for key in due)
            await self._rows.copies_deleted(due)
        return Step(progress=progress, more=len(due) == self._cap, done={"deleted": len(due)})


class HistoryGarbageJob:
    """Deletes history's objects that no snapshot names any more, and unpublished objects of ended jobs."""

    name = "history-garbage"

    def __init__(self, sequencer: Sequencer, store: ObjectStore, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.garbage_interval_s
        self._sequencer = sequencer
        self._history = sequencer.history.garbage
        self._store = store
        self._settings = settings
        self._cap = settings.garbage_segments_per_step

    async def step(self, progress: str | None) -> Step:
        abandoned = await self._history.abandon_expired(self._cap)
        keys = await self._history.unreferenced(
            grace_s=self._settings.history_grace_s,
            erased_grace_s=self._settings.garbage_grace_s,
            after_checkpoint=self._settings.restore_horizon_s > 0,
            cap=self._cap,
        )
        if keys:
            await _delete_owned(self._sequencer, self._store, keys)
            await self._history.forget_objects(keys)
        ended = await self._history.ended_jobs(older_than_s=self._settings.late_write_window_s, cap=self._cap)
        unpublished = 0
        for job in ended:
            unpublished += await self._sweep_prefix(job)
            await self._history.forget_jobs([job.job_id])
        return Step(
            progress=progress,
            more=self._cap in (abandoned, len(keys), len(ended)),
            done={"deleted": len(keys), "unpublished": unpublished},
        )

    async def _sweep_prefix(self, job: EndedJob) -> int:
        """Deletes the job's objects that no published metadata ever named. Nothing writes there any more.
        Returns how many objects.
        """
        unpublished = 0
        page: list[ObjectKey] = []
        async for info in self._store.list(job.prefix):
            page.append(info.key)
            if len(page) == self._cap:
                unpublished += await self._delete_unrecorded(page)
                page = []
        return unpublished + await self._delete_unrecorded(page)

    async def _delete_unrecorded(self, keys: list[ObjectKey]) -> int:
        recorded = await self._history.recorded(keys)
        unrecorded = [key for key in keys if key not in recorded]
        if unrecorded:
            await _delete_owned(self._sequencer, self._store, unrecorded)
        return len(unrecorded)


async def _delete_owned(sequencer: Sequencer, store: ObjectStore, keys: Sequence[ObjectKey]) -> None:
    """Deletes the objects while the bucket is certainly this database's. Raises OwnershipUnconfirmed."""
    async with sequencer.ownership.demanded():
        await store.delete(keys)
