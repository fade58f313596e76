"""The report of a recovery or a rehearsal: counts of everything, and the first of each kind by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from recovery.plan import JournalPosition, PartitionKey, Source


@dataclass(slots=True, kw_only=True)
class PartitionChange:
    """The changes of one partition, in records (offsets)."""

    name: str
    high_watermark_before: int | None = None
    """Records in the database before; None: it had no such partition."""
    high_watermark_after: int | None = None
    """Records after; None: the partition no longer exists."""
    replaced: int = 0
    """Their object was missing. Another object has them, at the same offsets."""
    gone: int = 0
    """No object has them any more."""
    appended: int = 0
    """Their offsets were unknown. They are at the end now, in the order of their uploads."""
    duplicates: int = 0
    """In young segments, but already in the log."""
    refused: int = 0
    """In young segments or in the journal's runs; they could not be appended."""

    @property
    def is_changed(self) -> bool:
        counts = self.replaced or self.gone or self.appended or self.refused
        return bool(counts) or self.high_watermark_before != self.high_watermark_after


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRefused:
    """Records that were found and are not in the log, and why."""

    what: str
    """The object's key, or `topic/partition [first offset, last offset]`."""
    reason: str
    records: int | None
    """None: the object cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneOffsets:
    """Offsets `[base_offset, last_offset]` of a partition that no object holds any more, and why."""

    key: PartitionKey
    name: str
    base_offset: int
    last_offset: int
    reason: str

    @property
    def offsets(self) -> int:
        return self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAborted:
    """A transaction in a partition that the recovery aborted, because its end could not be known."""

    key: PartitionKey
    name: str
    producer_id: int
    first_offset: int
    """Its first record's. Records of this producer from here to the marker are left out."""
    marker_offset: int


@dataclass(slots=True, kw_only=True)
class Report:
    """Filled step by step."""

    cluster: str
    is_rehearsal: bool
    source: Source = Source.DATABASE
    database_position: JournalPosition | None = None
    bucket_position: JournalPosition | None = None
    journal_faults: Sequence[str] = ()
    """Objects of the journal that are missing or corrupt, in words."""
    last_entry_at: datetime | None = None
    """When the last journal entry's snapshot was taken, or the time of the database's last commit; None:
    never."""
    uploaded_objects: int = 0
    merged_objects: int = 0
    journal_rows: int = 0
    keys_found: int = 0
    """Keys of encrypted topics that the bucket has and the log had not."""
    key_faults: list[str] = field(default_factory=list)
    """Copies of topics' keys that cannot be read, in words."""
    missing_objects: int = 0
    undeleted_objects: int = 0
    young_segments: int = 0
    leftovers: int = 0
    """Objects that nothing names: garbage from now on."""
    partitions: dict[PartitionKey, PartitionChange] = field(default_factory=dict)
    gone_ranges: list[GoneOffsets] = field(default_factory=list)
    gone_more: int = 0
    """Ranges that are counted only."""
    refused: list[RecordsRefused] = field(default_factory=list)
    refused_more: int = 0
    aborted: list[TransactionAborted] = field(default_factory=list)
    aborted_more: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds per step."""

    def of(self, key: PartitionKey) -> PartitionChange:
        topic_id, partition = key
        return self.partitions.setdefault(key, PartitionChange(name=f"{topic_id}/{partition}"))

    def give_up(self, key: PartitionKey, offsets: tuple[int, int], reason: str, most_listed: int) -> None:
        """Adds offsets, from the first to the last one."""
        base_offset, last_offset = offsets
        change = self.of(key)
        change.gone += last_offset - base_offset + 1
        if len(self.gone_ranges) < most_listed:
            self.gone_ranges.append(
                GoneOffsets(
                    key=key, name=change.name, base_offset=base_offset, last_offset=last_offset, reason=reason
                )
            )
        else:
            self.gone_more += 1

    def refuse(self, one: RecordsRefused, most_listed: int) -> None:
        if len(self.refused) < most_listed:
            self.refused.append(one)
        else:
            self.refused_more += 1

    def abort(
        self,
        key: PartitionKey,
        producer_id: int,
        *,
        first_offset: int,
        marker_offset: int,
        most_listed: int,
    ) -> None:
        one = TransactionAborted(
            key=key,
            name=self.of(key).name,
            producer_id=producer_id,
            first_offset=first_offset,
            marker_offset=marker_offset,
        )
        if len(self.aborted) < most_listed:
            self.aborted.append(one)
        else:
            self.aborted_more += 1

    @property
    def appended(self) -> int:
        return sum(change.appended for change in self.partitions.values())

    @property
    def replaced(self) -> int:
        return sum(change.replaced for change in self.partitions.values())

    @property
    def gone(self) -> int:
        return sum(change.gone for change in self.partitions.values())

    @property
    def records_refused(self) -> int:
        return sum(change.refused for change in self.partitions.values())

    @property
    def is_lossless(self) -> bool:
        """True if everything that was found is in the log."""
        return not (self.gone or self.refused or self.refused_more)
