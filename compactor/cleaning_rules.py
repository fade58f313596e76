"""When a partition of a compacted topic is cleaned, and when its tombstones and markers may go
(docs/design/log-compaction.md; Kafka's log cleaner, KIP-58, KIP-354 and KIP-534).

Pure. What of the records stays is decided in `storage/arrow/latest_keys.py`.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from sequencer.housekeeping.cleanings import CleaningState, CleanMark
from sequencer.topics.topic_config import TopicConfig
from storage.identifiers import Offset

MOST_MARKS: Final = 32


def is_due(state: CleaningState, config: TopicConfig) -> bool:
    """True if it may be worth while to look at the partition's runs."""
    if state.high_watermark <= state.log_start_offset:
        return False
    if may_drop_tombstones(state, config):
        return True
    if state.cleanable_to <= state.clean_to:
        return False
    dirty_bytes = max(1, state.size_bytes - state.clean_bytes)
    return is_dirty_enough(dirty_bytes, state, config, state.oldest_dirty_ms)


def is_dirty_enough(
    dirty_bytes: int, state: CleaningState, config: TopicConfig, oldest_dirty_ms: int | None
) -> bool:
    """True if the bytes that can be cleaned are enough of the log, or the oldest of them waited too long."""
    if oldest_dirty_ms is not None and oldest_dirty_ms < state.now_ms - config.max_compaction_lag_ms:
        return True
    whole = min(state.clean_bytes, state.size_bytes) + dirty_bytes
    return dirty_bytes > config.min_cleanable_dirty_ratio * whole


def is_too_young(max_timestamp_ms: int, state: CleaningState, config: TopicConfig) -> bool:
    """True if a run with this greatest timestamp, and so all after it, is not to be cleaned yet."""
    return config.min_compaction_lag_ms > 0 and max_timestamp_ms > state.now_ms - config.min_compaction_lag_ms


def tombstones_to(state: CleaningState, config: TopicConfig) -> Offset:
    """Tombstones and markers below this offset have been clean for `delete.retention.ms`, and the topic's
    table has seen them.

    Where the log begins in history, older records of their keys may be there: none goes then."""
    if state.local_start_offset > state.log_start_offset:
        return Offset(0)
    before_ms = state.now_ms - config.delete_retention_ms
    clean_to = max((mark.offset for mark in state.marks if mark.since_ms <= before_ms), default=Offset(0))
    return min(clean_to, state.cleanable_to)


def may_drop_tombstones(state: CleaningState, config: TopicConfig) -> bool:
    """True if the time of a tombstone or a marker is over."""
    return state.oldest_tombstone is not None and state.oldest_tombstone < tombstones_to(state, config)


def with_mark(
    state: CleaningState, clean_to: Offset, since_ms: int, config: TopicConfig
) -> Sequence[CleanMark]:
    """The partition's marks once it is clean below `clean_to`, at `since_ms`. Where damage keeps records that
    should have gone, `clean_to` is not beyond it: a tombstone behind may be all that hides them.

    Of those whose tombstones may go, the last one says all. Of the others, a mark is left out where the next
    one is nearest in time: the tombstones below it then stay longer."""
    before_ms = state.now_ms - config.delete_retention_ms
    expired = [mark for mark in state.marks if mark.since_ms <= before_ms]
    marks = [*expired[-1:], *(mark for mark in state.marks if mark.since_ms > before_ms)]
    if not marks or clean_to > marks[-1].offset:
        marks.append(CleanMark(offset=clean_to, since_ms=since_ms))
    while len(marks) > MOST_MARKS:
        pauses = [after.since_ms - mark.since_ms for mark, after in itertools.pairwise(marks)]
        del marks[pauses.index(min(pauses))]
    return marks
