"""The ledger of a drill: checks record by record what a recovery did to the log.

Promises of `check`: every record acknowledged before the last journal entry is at its offset; none of an
idempotent producer's is there twice; every acknowledged record is there or was listed; what was sent is what
is read.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.faults.ledger import Contents, Ledger, ReadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Faults in words, and figures."""

    faults: tuple[str, ...]
    acknowledged: int
    moved: int
    """Acknowledged after the last journal entry, and at another offset now."""


class DrillLedger(Ledger):
    """Also notes when each record was acknowledged, by the machine's clock."""

    def __init__(self, contents: Contents, unordered: Sequence[int] = ()) -> None:
        """`unordered`: producers without idempotence. When leaders change, or an answer says that the outcome
        is not known, their clients may send a record again: Kafka promises neither its order nor that it is
        there
        once.
        """
        super().__init__(contents)
        self._unordered = tuple(
            f"{fault}: ({producer}, " for producer in unordered for fault in ("disorder", "duplicate")
        )
        self._times: dict[tuple[int, int], float] = {}

    def acknowledged(self, producer: int, sequence: int, partition: int, offset: int) -> None:
        super().acknowledged(producer, sequence, partition, offset)
        self._times[producer, sequence] = time.time()

    def check(
        self,
        log: Mapping[int, Sequence[ReadRecord]],
        *,
        journaled_at: float,
        ends: Mapping[int, int],
        listed: int,
    ) -> Checked:
        """`ends`: of each partition, where the journal ended; `listed`: records that the recovery said it
        lost.
        """
        faults: list[str] = []
        places: dict[tuple[int, int], tuple[int, int]] = {}
        for partition, records in log.items():
            offsets = [read.offset for read in records]
            if offsets != sorted(set(offsets)):
                faults.append(f"partition {partition} was not read in order")
            found = self._check_partition(partition, records, places)
            faults += [fault for fault in found if not fault.startswith(self._unordered)]
        with self._lock:
            acknowledged = dict(self._acknowledged)
        lost = [name for name in acknowledged if name not in places]
        if len(lost) > listed:
            faults += [
                f"lost, and not listed: {name} acknowledged at {acknowledged[name]}" for name in lost[:5]
            ]
        moved = 0
        for name, (partition, offset) in acknowledged.items():
            is_journaled = self._times[name] < journaled_at
            if offset < 0 or name not in places or places[name] == (partition, offset):
                if is_journaled and name not in places:
                    faults.append(f"{name} was acknowledged before the last journal entry, and is lost")
                continue
            moved += 1
            if is_journaled or offset < ends[partition]:
                faults.append(f"moved: {name} was acknowledged at {offset}, and is at {places[name]}")
        return Checked(faults=tuple(faults), acknowledged=len(acknowledged), moved=moved)
