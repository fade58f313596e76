"""What retention keeps of a partition (docs/design/garbage.md#retention; Kafka's `retention.ms` and `retention.bytes`).

Pure. Promise: only a prefix of the log is dropped, run by run. A run goes while it is older than
`retention_ms`, or while the log without it still holds `retention_bytes`. The first run that must stay ends
this. A negative limit means no limit.
"""

from dataclasses import dataclass, replace

from sequencer.housekeeping.retention import AgedRun, PartitionLog
from sequencer.topics.topic_config import TopicConfig
from storage.identifiers import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    retention_ms: int
    retention_bytes: int

    @classmethod
    def of(cls, log: PartitionLog) -> "RetentionPolicy":
        config = TopicConfig.of(log.config)
        return cls(retention_ms=config.retention_ms, retention_bytes=config.retention_bytes)


def keep_from(log: PartitionLog, policy: RetentionPolicy) -> Offset:
    """Returns the first offset to keep, judged by `log.oldest` alone. If all of those may go, more runs may
    follow."""
    size_bytes = log.size_bytes
    kept_from = log.log_start_offset
    for run in log.oldest:
        if run.last_offset >= log.log_start_offset and not _may_go(run, size_bytes, policy, log.now_ms):
            break
        size_bytes -= run.length
        kept_from = Offset(max(kept_from, run.last_offset + 1))
    return kept_from


def has_work(log: PartitionLog, policy: RetentionPolicy) -> bool:
    """True if the oldest run must be dropped, because it is below the log start or by policy."""
    oldest = replace(log, oldest=log.oldest[:1])
    left_over = any(run.last_offset < log.log_start_offset for run in oldest.oldest)
    return left_over or keep_from(oldest, policy) > log.log_start_offset


def _may_go(run: AgedRun, size_bytes: int, policy: RetentionPolicy, now_ms: int) -> bool:
    expired = policy.retention_ms >= 0 and run.aged_from_ms < now_ms - policy.retention_ms
    too_much = policy.retention_bytes >= 0 and size_bytes - run.length >= policy.retention_bytes
    return expired or too_much
