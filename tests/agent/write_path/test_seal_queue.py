"""What may be committed: the longest uploaded prefix, never a segment behind one that still uploads."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.write_path.seal_queue import QueuedSegment, SealQueue, Stage
from storage.identifiers import ObjectKey, new_segment_id
from storage.segments.segment_batches import PlacedBatches


def a_segment(number: int) -> QueuedSegment[int]:
    return QueuedSegment(
        segment_id=new_segment_id(),
        object_key=ObjectKey(str(number)),
        size_bytes=1,
        placed=PlacedBatches.of(()),
        order=np.empty(0, np.int64),
        waiters=(),
        data=b"",
        arrived_s=float(number),
    )


@given(data=st.data(), count=st.integers(0, 8), most=st.integers(1, 4))
def test_segments_are_committed_in_seal_order_and_failed_ones_never(
    data: st.DataObject, count: int, most: int
) -> None:
    queue: SealQueue[int] = SealQueue()
    segments = [a_segment(number) for number in range(count)]
    for segment in segments:
        queue.append(segment)
    committed: list[QueuedSegment[int]] = []

    uploading = list(segments)
    while uploading:
        ended = uploading.pop(data.draw(st.integers(0, len(uploading) - 1)))
        ended.stage = data.draw(st.sampled_from([Stage.UPLOADED, Stage.FAILED]))
        while prefix := queue.committable(most):
            assert len(prefix) <= most
            queue.remove(prefix)
            committed += prefix
        # Whatever is committed has nothing before it that still uploads.
        if committed:
            before = segments[: segments.index(committed[-1])]
            assert all(segment.stage is not Stage.UPLOADING for segment in before)

    assert committed == [segment for segment in segments if segment.stage is Stage.UPLOADED]
    assert len(queue) == 0


def test_the_remaining_segments_can_be_drained() -> None:
    queue: SealQueue[int] = SealQueue()
    segments = [a_segment(0), a_segment(1)]
    for segment in segments:
        queue.append(segment)

    assert queue.drain() == segments
    assert len(queue) == 0
