"""The values of `journal.py`: moments, marks, the row of the table, and the results of readings. Pure."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from storage.segments.journal_format import CopiedRows, JournalHeader, Kind

_MOST_MARKS: Final = 64
_OLDEST_SNAPSHOT_XIDS: Final = 1_000_000_000
"""Postgres can compare ids that are less than 2^31 transactions apart; this keeps a margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment, and the id of the next transaction at it or a little later."""

    time: datetime
    next_xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReading:
    """The last reading of a family."""

    snapshot: str
    read_at: datetime
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """The row of the table `journal`. Ages are None before the first entry or checkpoint."""

    epoch: int
    last_number: int
    last_entry: int
    snapshot: str | None
    topic_changes: int
    marks: tuple[Mark, ...]
    families: Mapping[str, FamilyReading]
    checkpoint_number: int
    checkpoint_bytes: int
    entries: int
    entry_bytes: int
    bytes_since_checkpoint: int
    age_s: float | None
    """Since the snapshot of the last entry."""
    checkpoint_age_s: float | None
    is_another_postgres: bool
    snapshot_age_xids: int

    def why_begin(self, epoch: int) -> str | None:
        """Why a checkpoint must come first; None if an entry can continue what is in the bucket."""
        if self.snapshot is None or not self.checkpoint_number:
            return "there is none yet"
        if self.epoch != epoch:
            return "the ownership has another epoch"
        if self.is_another_postgres:
            return "Postgres failed over"
        if self.snapshot_age_xids > _OLDEST_SNAPSHOT_XIDS:
            return "the last entry is too old"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalMoment:
    """The moment of a reading: its snapshot, and the state of the database then."""

    taken_at: datetime
    snapshot: str
    xmin: int
    next_xid: int
    topic_changes: int
    cluster_id: str
    migration: int
    system_identifier: int
    timeline: int
    sequences: Mapping[str, int]

    def header(self, kind: Kind, *, epoch: int, number: int, follows: int, **more: Any) -> JournalHeader:
        return JournalHeader(
            kind=kind,
            cluster_id=self.cluster_id,
            epoch=epoch,
            number=number,
            follows=follows,
            taken_at=self.taken_at.isoformat(),
            snapshot=self.snapshot,
            migration=self.migration,
            system_identifier=self.system_identifier,
            timeline=self.timeline,
            sequences=self.sequences,
            **more,
        )


@dataclass(slots=True, kw_only=True)
class EntryReading:
    """What was committed since the last entry. Take `pieces` while the reading is open; each becomes one
    entry."""

    moment: JournalMoment
    state: JournalState
    segment_count: int
    is_too_much: bool
    """True: it is more than one pass may take. The caller writes a checkpoint instead."""
    pieces: AsyncIterator[Sequence[CopiedRows]]
    families: dict[str, FamilyReading] = field(default_factory=dict)
    """The families read, once all pieces were taken."""


@dataclass(slots=True, kw_only=True)
class CheckpointReading:
    """The whole log at one moment. Take `pieces` while the reading is open; each becomes one part."""

    moment: JournalMoment
    pieces: AsyncIterator[Sequence[CopiedRows]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNumber:
    number: int
    last_entry: int
    last_number: int


def next_marks(marks: Sequence[Mark], moment: JournalMoment) -> tuple[Mark, ...]:
    """The marks after a reading. A transaction that its snapshot does not show has an id of at least the
    xmin. So it began after the last mark whose `next_xid` is not above the xmin. Marks before that one are no
    longer needed."""
    known = [*marks, Mark(time=moment.taken_at, next_xid=moment.next_xid)]
    first = max((place for place, mark in enumerate(known) if mark.next_xid <= moment.xmin), default=0)
    known = known[first:]
    if (
        len(known) > _MOST_MARKS
    ):  # a transaction has been open for long: fewer marks look a little further back
        known = [*known[:-1:2], known[-1]]
    return tuple(known)


def family_of(fields: Mapping[str, Any]) -> FamilyReading:
    return FamilyReading(
        snapshot=fields["snapshot"],
        read_at=datetime.fromisoformat(fields["read_at"]),
        took_s=fields["took_s"],
    )


def families_text(families: Mapping[str, FamilyReading]) -> str:
    return json.dumps(
        {
            name: {
                "snapshot": last.snapshot,
                "read_at": last.read_at.isoformat(),
                "took_s": round(last.took_s, 4),
            }
            for name, last in families.items()
        }
    )
