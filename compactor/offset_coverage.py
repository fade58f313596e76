"""Checks that runs cover a partition's offsets exactly, from its log start to its high watermark
(docs/design/commit.md).

Pure. It gets the runs in chunks. Each chunk is from one moment; between two of them the log may grow at its
end and shrink at its start.

Promises: it finds every gap, overlap and missing end in a log that stands still. It finds nothing in a log
that only grows and shrinks.
"""

from dataclasses import dataclass, field

from sequencer.housekeeping.inspection import ChunkRun, LogChunk
from storage.identifiers import Offset


@dataclass(slots=True, kw_only=True)
class OffsetCoverage:
    """The extent of the runs so far: `reached` is the first offset after them, None before the first run."""

    reached: int | None = None
    runs: int = 0
    length: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def next_from(self) -> Offset:
        return Offset(self.reached or 0)

    def add(self, chunk: LogChunk, *, is_last: bool) -> None:
        for run in chunk.runs:
            self._follow(run, chunk.log_start_offset)
        if is_last:
            self._end(chunk)

    def _follow(self, run: ChunkRun, log_start: int) -> None:
        """Below the log start no run is needed."""
        expected = log_start if self.reached is None else self.reached
        if run.base_offset > max(expected, log_start):
            self.faults.append(f"no run holds offsets [{max(expected, log_start)}, {run.base_offset})")
        elif self.reached is not None and run.base_offset < self.reached:
            self.faults.append(f"two runs hold offsets [{run.base_offset}, {self.reached})")
        self.reached = max(self.reached or 0, run.last_offset + 1)
        self.runs += 1
        self.length += run.length

    def _end(self, chunk: LogChunk) -> None:
        reached = max(self.reached or 0, chunk.log_start_offset)
        if reached < chunk.high_watermark:
            self.faults.append(f"no run holds offsets [{reached}, {chunk.high_watermark}), the end of the log")
        elif reached > chunk.high_watermark:
            self.faults.append(f"runs reach to {reached}, past the high watermark {chunk.high_watermark}")
