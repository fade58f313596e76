"""Checks that a segment's bytes match the runs that refer to it (docs/design/segment.md#verification).

Pure. Promise: bytes that pass hold, at every run's place, whole batches of the run's partition with as many
records as it has offsets. Every byte of the segment is as it was sealed.
"""

from collections.abc import Sequence

from sequencer.housekeeping.inspection import SegmentRun
from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import index_batches
from storage.identifiers import SegmentId
from storage.segments.segment import CorruptSegment, FooterRun, SegmentFooter, verify_segment


def faults_of_segment(segment_id: SegmentId, data: Buffer, runs: Sequence[SegmentRun]) -> list[str]:
    """Returns what is wrong, in words; empty if nothing is."""
    try:
        footer = verify_segment(data)
    except CorruptSegment as corrupt:
        return [str(corrupt)]
    if footer.segment_id != segment_id:
        return [f"it holds segment {footer.segment_id}"]
    return [fault for run in runs if (fault := _fault_of_run(run, data, footer))]


def _fault_of_run(run: SegmentRun, data: Buffer, footer: SegmentFooter) -> str | None:
    name = f"run {run.topic_id}/{run.partition} [{run.base_offset}, {run.last_offset}]"
    end = run.position + run.length
    if not any(
        (sealed.topic_id, sealed.partition) == (run.topic_id, run.partition)
        and sealed.position <= run.position
        and end <= sealed.position + sealed.length
        and _may_hold(sealed, run)
        for sealed in footer.runs
    ):
        return f"{name} is not within its partition's bytes, or not within their offsets"
    try:
        batches = index_batches(data, run.position, end)
    except ValueError as error:
        return f"{name} does not lie on batch borders: {error}"
    records = int((batches["last_offset_delta"] + 1).sum())
    if records != run.last_offset - run.base_offset + 1:
        return f"{name} refers to bytes with {records} records"
    return None


def _may_hold(sealed: FooterRun, run: SegmentRun) -> bool:
    """A merged segment's footer must agree with the run's offsets. An uploaded segment has no offsets yet."""
    if sealed.base_offset is None or sealed.last_offset is None:
        return True
    return sealed.base_offset <= run.base_offset and run.last_offset <= sealed.last_offset
