"""The doctor's results: counts of everything, and the first findings of each kind."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What can be wrong. The value describes it for people."""

    MISSING_OBJECT = "object missing"
    CORRUPT_OBJECT = "object corrupt"
    ORPHAN_OBJECT = "orphan object"
    DANGLING_RUN = "dangling run"
    GAP = "gap in the offsets"
    WRONG_SIZE = "wrong size of a partition"
    PRODUCER_STATE = "producer state"
    MISSING_HISTORY = "history file missing"
    NOT_OWNED = "bucket not owned"
    OLD_JOURNAL = "journal behind"


class Sight(StrEnum):
    """What the doctor found in order, by kind."""

    PARTITION = "partitions"
    RUN = "runs"
    REFERENCED = "segments referred to by runs"
    HISTORY = "history files of retained snapshots"
    OBJECT = "objects listed"
    MERGED = "of them merged segments"
    LIVE = "of them segments with runs"
    RESERVED = "of them reserved segments"
    GARBAGE = "of them segments waiting for their deletion"
    LATE = "of them segments that came late and wait for their second deletion"
    HISTORY_RECORDED = "of them history files, retained or waiting for their deletion"
    JOURNAL = "of them entries and checkpoints of the journal"
    IDENTITY = "of them such as name the cluster or its owner"
    KEY = "of them keys of topics, encrypted"
    BACKUP = "of them backups of Postgres"
    HISTORY_RESERVED = "of them under the prefix of a history job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    fault: Fault
    where: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`findings` holds at most a set number of each fault; `fault_counts` counts all of them."""

    contents_verified: bool
    seen: Mapping[Sight, int]
    fault_counts: Mapping[Fault, int]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        return not any(self.fault_counts.values())

    @property
    def orphans(self) -> tuple[Finding, ...]:
        """Objects that nothing refers to."""
        return self.of(Fault.ORPHAN_OBJECT)

    @property
    def dangling_runs(self) -> tuple[Finding, ...]:
        """Runs, and files of the history, whose object is missing."""
        return self.of(Fault.DANGLING_RUN) + self.of(Fault.MISSING_OBJECT) + self.of(Fault.MISSING_HISTORY)

    @property
    def corrupt(self) -> tuple[Finding, ...]:
        """Objects that do not hold what they should."""
        return self.of(Fault.CORRUPT_OBJECT)

    def of(self, fault: Fault) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.fault is fault)

    def summary(self) -> str:
        """A few lines for people. The first says whether anything is wrong."""
        total = sum(self.fault_counts.values())
        verdict = "healthy" if self.is_healthy else f"{total} fault{'s' if total > 1 else ''} found"
        depth = "every byte verified" if self.contents_verified else "sizes checked, contents not read"
        lines = [f"{verdict} ({depth})"]
        lines += [f"  {count} {sight}" for sight, count in self.seen.items() if count]
        for fault, count in self.fault_counts.items():
            shown = self.of(fault)
            lines.append(f"{fault}: {count}" + (f", the first {len(shown)}:" if count > len(shown) else ":"))
            lines += [f"  {finding.where}: {finding.what}" for finding in shown]
        return "\n".join(lines)


class Chart:
    """The doctor's notes while it examines; `max_findings` of each fault are kept."""

    def __init__(self, max_findings: int) -> None:
        self._max_findings = max_findings
        self._seen: Counter[Sight] = Counter()
        self._faults: Counter[Fault] = Counter()
        self._findings: list[Finding] = []

    def saw(self, sight: Sight, count: int = 1) -> None:
        self._seen[sight] += count

    def found(self, finding: Finding) -> None:
        self._faults[finding.fault] += 1
        if self._faults[finding.fault] <= self._max_findings:
            self._findings.append(finding)

    def diagnosis(self, *, contents_verified: bool) -> Diagnosis:
        return Diagnosis(
            contents_verified=contents_verified,
            seen={sight: self._seen[sight] for sight in Sight},
            fault_counts={fault: self._faults[fault] for fault in Fault if self._faults[fault]},
            findings=tuple(self._findings),
        )
