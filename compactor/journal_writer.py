"""Writes the commit journal into the bucket, and deletes its old objects
(docs/design/recovery.md#the-commit-journal).

Promises:
- Writes and deletes only under a confirmed ownership of the bucket, and uses no key twice.
- Postgres has the number of an entry before the bucket has the entry. The entry is confirmed afterwards. A
  crash at any point is harmless: an unconfirmed entry is written again under another number.
- The journal begins with a checkpoint: the first time, after a take-over, and after a failover of Postgres.
- Memory is bounded by the settings, whatever the log's size.
- Entries and checkpoints are deleted only when two newer checkpoints are complete and the restore horizon is
  over.

The jobs of the commit journal (`journal_writer.py`): entries every few seconds, checkpoints every few
minutes.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from crc32c import crc32c

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.journal.readings import CheckpointNumber, CheckpointReading, EntryReading, JournalState
from storage.identifiers import ObjectKey
from storage.segments.journal_format import (
    CopiedRows,
    CorruptJournal,
    JournalHeader,
    Kind,
    Part,
    encode,
    read_header,
)
from storage.segments.keys import (
    checkpoint_manifest_key,
    checkpoint_object_of,
    checkpoint_part_key,
    checkpoints_prefix,
    journal_entry_of,
    journal_key,
    journal_prefix,
)
from storage.stores.object_store import ObjectChanged, ObjectNotFound, ObjectStore, StoreUnavailable
from storage.threads import Threads

log = logging.getLogger("tidelog")

_COMPLETE_KEPT = 2
_SLOW_READING_S = 0.05
"""A reading that took this long and found nothing is still noted, so that its pace is kept."""
_NUMBERS_TRIED = 100
_LEAST_CHECKPOINT_BYTES = 64 << 20
"""If entries grow beyond this, a small checkpoint is written early."""
_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """The result of one attempt. `overtaken`: another writer was faster, and readers ignore these objects."""

    objects: int = 0
    size_bytes: int = 0
    segments: int = 0
    overtaken: bool = False


class JournalWriter:
    """`cluster` is the first part of all keys."""

    def __init__(
        self, sequencer: Sequencer, store: ObjectStore, cluster: str, settings: HousekeeperSettings
    ) -> None:
        self._ownership = sequencer.ownership
        self._journal = sequencer.journal
        self._store = store
        self._cluster = cluster
        self._settings = settings
        self._checkpoint_took_s = 0.0
        self._threads = Threads("journal", 1)

    async def _confirmed_epoch(self) -> int:
        """The epoch under which this database owns the bucket now. Raises OwnershipUnconfirmed."""
        state = await self._ownership.state()
        state.demand()
        return state.epoch

    # --- entries

    async def write_entry(self) -> JournalWrite:
        """Writes what was committed since the last entry. Writes a checkpoint if no entry can continue the
        journal."""
        epoch = await self._confirmed_epoch()
        state = await self._journal.state()
        why_begin = state.why_begin(epoch)
        if why_begin is None:
            async with self._journal.read_entry(
                state,
                most_segments=self._settings.journal_segments_per_pass,
                most_batches=self._settings.journal_batches_per_entry,
                timeout_s=self._settings.journal_timeout_s,
            ) as reading:
                if not reading.is_too_much:
                    return await self._write_pieces(reading)
            why_begin = "more was committed since the last entry than a pass may take"
        log.info("the journal begins with a checkpoint", extra={"epoch": epoch, "reason": why_begin})
        return await self._write_checkpoint(epoch, begins=True)

    async def _write_pieces(self, reading: EntryReading) -> JournalWrite:
        number = reading.state.last_entry
        size_bytes = objects = 0
        async for tables in reading.pieces:
            if not (tables or objects or self._is_heartbeat_due(reading)):
                break
            follows = number
            for _ in range(_NUMBERS_TRIED):
                taken = await self._journal.take_number(reading.state)
                if taken is None:
                    return JournalWrite(overtaken=True)
                number = taken
                header = reading.moment.header(
                    Kind.ENTRY, epoch=reading.state.epoch, number=number, follows=follows
                )
                with contextlib.suppress(ObjectChanged):  # a lost Postgres, or a copy, has used that number
                    put = await self._put(journal_key(self._cluster, header.epoch, number), header, tables)
                    break
            else:
                raise StoreUnavailable(
                    f"all keys up to {journal_key(self._cluster, reading.state.epoch, number)} exist"
                )
            size_bytes += put.size_bytes
            objects += 1
        if not objects and not any(
            reading.families[name] != reading.state.families.get(name)
            and reading.families[name].took_s > _SLOW_READING_S
            for name in reading.families
        ):
            return JournalWrite()
        is_done = await self._journal.confirm_entries(
            reading, number=number, entries=objects, size_bytes=size_bytes
        )
        return JournalWrite(
            objects=objects, size_bytes=size_bytes, segments=reading.segment_count, overtaken=not is_done
        )

    def _is_heartbeat_due(self, reading: EntryReading) -> bool:
        age_s = reading.state.age_s
        return age_s is None or age_s >= self._settings.journal_heartbeat_s

    # --- checkpoints

    async def write_checkpoint_if_due(self) -> JournalWrite:
        """`write_entry` writes the first one."""
        epoch = await self._confirmed_epoch()
        state = await self._journal.state()
        if state.why_begin(epoch) is not None or not self._is_checkpoint_due(state):
            return JournalWrite()
        return await self._write_checkpoint(epoch, begins=False)

    def _is_checkpoint_due(self, state: JournalState) -> bool:
        age_s = state.checkpoint_age_s
        if age_s is None:
            return True
        is_wanted = age_s >= self._settings.checkpoint_interval_s or state.bytes_since_checkpoint > max(
            state.checkpoint_bytes, _LEAST_CHECKPOINT_BYTES
        )
        return is_wanted and age_s >= self._settings.checkpoint_pace * self._checkpoint_took_s

    async def _write_checkpoint(self, epoch: int, *, begins: bool) -> JournalWrite:
        began_s = time.monotonic()
        number = await self._journal.take_checkpoint_number()
        follows = number.last_number if begins else number.last_entry
        async with self._journal.read_checkpoint(
            part_bytes=self._settings.checkpoint_part_bytes, timeout_s=self._settings.checkpoint_timeout_s
        ) as reading:
            parts = await self._write_parts(reading, epoch, number, follows)
        await self._confirmed_epoch()
        manifest = reading.moment.header(
            Kind.CHECKPOINT, epoch=epoch, number=number.number, follows=follows, parts=tuple(parts)
        )
        put = await self._put(checkpoint_manifest_key(self._cluster, epoch, number.number), manifest, [])
        size_bytes = put.size_bytes + sum(part.size_bytes for part in parts)
        is_done = await self._journal.confirm_checkpoint(
            reading.moment, epoch=epoch, number=number, size_bytes=size_bytes, begins=begins
        )
        self._checkpoint_took_s = time.monotonic() - began_s
        return JournalWrite(objects=len(parts) + 1, size_bytes=size_bytes, overtaken=not is_done)

    async def _write_parts(
        self, reading: CheckpointReading, epoch: int, number: CheckpointNumber, follows: int
    ) -> list[Part]:
        parts: list[Part] = []
        async for tables in reading.pieces:
            part = len(parts) + 1
            header = reading.moment.header(
                Kind.CHECKPOINT_PART, epoch=epoch, number=number.number, follows=follows, part=part
            )
            put = await self._put(
                checkpoint_part_key(self._cluster, epoch, number.number, part), header, tables
            )
            parts.append(Part(number=part, size_bytes=put.size_bytes, crc32c=put.crc32c))
        return parts

    async def _put(self, key: ObjectKey, header: JournalHeader, tables: Sequence[CopiedRows]) -> "_Put":
        chunks = await self._threads.run(encode, header, tables)
        await self._store.put_if(key, chunks, None)
        checksum = 0
        for chunk in chunks:
            checksum = crc32c(chunk, checksum)
        return _Put(size_bytes=sum(map(len, chunks)), crc32c=checksum)

    # --- old objects

    async def remove_old(self) -> int:
        """Deletes checkpoints and entries that no restore needs any more. Returns how many objects.

        It keeps the two newest complete checkpoints, every checkpoint younger than the restore horizon, and
        the entries after the oldest of these. Objects of a later epoch belong to another owner, and stay.
        """
        epoch = await self._confirmed_epoch()
        before = datetime.now(UTC) - timedelta(seconds=self._settings.restore_horizon_s)
        objects = [
            (place, info)
            async for info in self._store.list(checkpoints_prefix(self._cluster))
            if (place := checkpoint_object_of(info.key)) is not None and place.epoch <= epoch
        ]
        complete = sorted(
            ((place.epoch, place.number, info) for place, info in objects if place.part == 0),
            key=lambda each: each[:2],
            reverse=True,
        )
        kept = {
            each[:2]
            for place, each in enumerate(complete)
            if place < _COMPLETE_KEPT or each[2].modified_at >= before
        }
        if len(kept) < _COMPLETE_KEPT:
            return 0
        oldest = min(kept)
        old = [
            info.key
            for place, info in objects
            if (place.epoch, place.number) not in kept
            and (place.epoch, place.number) < max(kept)
            and info.modified_at < before
        ]
        follows = await self._follows(*oldest)
        if follows is not None:
            async for info in self._store.list(journal_prefix(self._cluster)):
                entry = journal_entry_of(info.key)
                if entry is not None and entry <= (oldest[0], follows) and info.modified_at < before:
                    old.append(info.key)
        # Manifests first: a checkpoint that lost a part must not look complete.
        old.sort(key=lambda key: not key.endswith("/manifest"))
        for start in range(0, len(old), _DELETED_AT_ONCE):
            async with self._ownership.demanded():
                await self._store.delete(old[start : start + _DELETED_AT_ONCE])
        return len(old)

    async def _follows(self, epoch: int, number: int) -> int | None:
        try:
            return read_header(
                await self._store.get(checkpoint_manifest_key(self._cluster, epoch, number))
            ).follows
        except (CorruptJournal, ObjectNotFound):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Put:
    size_bytes: int
    crc32c: int


_LOOKS_PER_CHECKPOINT = 20


class JournalJob:
    """Writes what was committed since the last entry."""

    name = "journal"

    def __init__(self, writer: JournalWriter, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.journal_interval_s
        self._writer = writer

    async def step(self, progress: str | None) -> Step:
        written = await self._writer.write_entry()
        return Step(progress=progress, done=_done(written) | {"segments": written.segments})


class CheckpointJob:
    """Writes a checkpoint when one is due, then deletes old objects of the journal."""

    name = "checkpoint"

    def __init__(self, writer: JournalWriter, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.checkpoint_interval_s / _LOOKS_PER_CHECKPOINT
        self._writer = writer

    async def step(self, progress: str | None) -> Step:
        written = await self._writer.write_checkpoint_if_due()
        removed = await self._writer.remove_old() if written.objects else 0
        return Step(progress=progress, done=_done(written) | {"removed": removed})


def _done(written: JournalWrite) -> dict[str, int]:
    return {"objects": written.objects, "bytes": written.size_bytes, "overtaken": written.overtaken}
