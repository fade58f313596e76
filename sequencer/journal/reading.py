"""Finds in the bucket the checkpoint to begin with and the journal entries that continue it, and reads them.

Promises:
- Only a complete checkpoint counts, and of these the one with the highest epoch and number.
- Entries form one chain: each names the one that it continues. Entries of an overtaken writer are ignored.
- A missing or corrupt object ends the chain and is named, never skipped silently.
- At most one whole object is in memory at a time.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from storage.batches.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.segments.journal_format import (
    PREFIX_BYTES,
    CopiedRows,
    CorruptJournal,
    JournalHeader,
    header_length,
    read_container,
    read_header,
)
from storage.segments.keys import (
    CheckpointObject,
    checkpoint_manifest_key,
    checkpoint_object_of,
    checkpoint_part_key,
    checkpoints_prefix,
    journal_entry_of,
    journal_key,
    journal_prefix,
)
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side

_HEADER_GUESS_BYTES = 16_384
_HEADERS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFound:
    """What a database is rebuilt from: the manifest's header, then the entries to load, oldest first.

    `faults`: what was found missing or corrupt on the way, in words; `is_cut`: the entries end early because
    of it.
    """

    checkpoint: JournalHeader
    entries: tuple[JournalHeader, ...]
    faults: tuple[str, ...]
    is_cut: bool

    @property
    def last(self) -> JournalHeader:
        """The youngest moment that can be restored."""
        return self.entries[-1] if self.entries else self.checkpoint

    def cut_before(self, entry: JournalHeader, why: str) -> "JournalFound":
        """Returns the journal without this entry and those that follow it."""
        kept = self.entries[: self.entries.index(entry)]
        fault = f"entry {entry.number} cannot be read, and the journal ends before it: {why}"
        return replace(self, entries=kept, faults=(*self.faults, fault), is_cut=True)


class JournalInBucket:
    def __init__(self, store: ObjectStore, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    async def find(self) -> JournalFound | None:
        """None: there is no complete checkpoint. Raises StoreUnavailable."""
        faults: list[str] = []
        checkpoint = await self._newest_checkpoint(faults)
        if checkpoint is None:
            return None
        headers = await self._entries_after(checkpoint, faults)
        entries, is_cut = chain(checkpoint, headers)
        if is_cut:
            faults.append(
                f"an entry after {entries[-1].number if entries else checkpoint.follows} is missing"
            )
        return JournalFound(checkpoint=checkpoint, entries=entries, faults=tuple(faults), is_cut=is_cut)

    async def checkpoint_tables(self, checkpoint: JournalHeader) -> AsyncIterator[list[CopiedRows]]:
        """Yields the tables part by part. Raises CorruptJournal, ObjectNotFound or StoreUnavailable."""
        for part in checkpoint.parts:
            key = checkpoint_part_key(self._cluster, checkpoint.epoch, checkpoint.number, part.number)
            _, tables = read_container(await self._store.get(key))
            yield tables

    async def entry_tables(self, entry: JournalHeader) -> list[CopiedRows]:
        """Raises as `checkpoint_tables`."""
        _, tables = read_container(
            await self._store.get(journal_key(self._cluster, entry.epoch, entry.number))
        )
        return tables

    async def checkpoints(self) -> list[CheckpointObject]:
        """Every object of every checkpoint."""
        found = [
            checkpoint_object_of(info.key)
            async for info in self._store.list(checkpoints_prefix(self._cluster))
        ]
        return [each for each in found if each is not None]

    async def _newest_checkpoint(self, faults: list[str]) -> JournalHeader | None:
        objects = await self.checkpoints()
        there = set(objects)
        for manifest in sorted((each for each in objects if each.part == 0), reverse=True):
            key = checkpoint_manifest_key(self._cluster, manifest.epoch, manifest.number)
            try:
                header, _ = read_container(await self._store.get(key))
            except (CorruptJournal, ObjectNotFound) as error:
                faults.append(f"{key}: {error}")
                continue
            missing = [
                part.number
                for part in header.parts
                if CheckpointObject(epoch=header.epoch, number=header.number, part=part.number) not in there
            ]
            if not missing:
                return header
            faults.append(f"{key}: its parts {', '.join(map(str, missing))} are missing")
        return None

    async def _entries_after(self, checkpoint: JournalHeader, faults: list[str]) -> list[JournalHeader]:
        keys = []
        async for info in self._store.list(journal_prefix(self._cluster)):
            place = journal_entry_of(info.key)
            if place is not None and place[0] == checkpoint.epoch and place[1] > checkpoint.follows:
                keys.append(info.key)
        headers: list[JournalHeader] = []
        for start in range(0, len(keys), _HEADERS_AT_ONCE):
            read = await side_by_side(
                self._header(key, faults) for key in keys[start : start + _HEADERS_AT_ONCE]
            )
            headers += [header for header in read if header is not None]
        return headers

    async def _header(self, key: ObjectKey, faults: list[str]) -> JournalHeader | None:
        try:
            data: Buffer = await self._store.get(key, 0, _HEADER_GUESS_BYTES)
            if len(data) >= PREFIX_BYTES and header_length(data) > len(data):
                data = await self._store.get(key, 0, header_length(data))
            return read_header(data)
        except (CorruptJournal, ObjectNotFound) as error:
            faults.append(f"{key}: {error}")
            return None


def chain(
    checkpoint: JournalHeader, entries: Sequence[JournalHeader]
) -> tuple[tuple[JournalHeader, ...], bool]:
    """The entries to load after the checkpoint, oldest first, and whether there are younger ones that do not
    connect.

    Pure. Only entries of the checkpoint's Postgres count. The chain ends with the entry of the youngest
    moment, and goes back from each entry to the one that it continues.
    """
    same = {entry.number: entry for entry in entries if _lineage(entry) == _lineage(checkpoint)}
    is_cut = False
    for last in sorted(same.values(), key=_moment, reverse=True):
        if not _is_younger(last, checkpoint):
            break
        path = [last]
        while path[-1].follows > checkpoint.follows and path[-1].follows in same:
            path.append(same[path[-1].follows])
        if path[-1].follows <= checkpoint.follows:
            return tuple(entry for entry in reversed(path) if _is_younger(entry, checkpoint)), is_cut
        is_cut = True
    return (), is_cut


def _lineage(header: JournalHeader) -> tuple[str, int, int]:
    return header.cluster_id, header.system_identifier, header.timeline


def _is_younger(entry: JournalHeader, checkpoint: JournalHeader) -> bool:
    return _transactions_shown(entry) > _transactions_shown(checkpoint)


def _moment(entry: JournalHeader) -> tuple[int, int]:
    """Entries of one reading share a snapshot; their numbers rise."""
    return _transactions_shown(entry), entry.number


def _transactions_shown(header: JournalHeader) -> int:
    """How many transaction ids the snapshot shows as ended: all below its greatest one but those it lists.

    A later snapshot of the same Postgres shows all that an earlier one shows, so the greater count is the
    later moment. Neither `taken_at` nor the greatest id orders them: a transaction begins before its snapshot
    is taken, and an older transaction may end without raising the greatest id.
    """
    _, greatest, listed = header.snapshot.split(":")
    return int(greatest) - (listed.count(",") + 1 if listed else 0)
