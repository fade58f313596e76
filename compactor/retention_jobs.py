"""The jobs that shorten the log: retention by time and bytes, deleted topics, old producers.

What retention keeps of a partition (docs/design/garbage.md#retention; Kafka's `retention.ms` and
`retention.bytes`).

Pure. Promise: only a prefix of the log is dropped, run by run. A run goes while it is older than
`retention_ms`, or while the log without it still holds `retention_bytes`. The first run that must stay ends
this. A negative limit means no limit.

The jobs for consumer groups remove unused offsets and empty groups.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.producers import ProducerKey
from sequencer.groups.group_retention import OffsetKey
from sequencer.housekeeping.retention import BEFORE_ALL, AgedRun, Moved, PartitionKey, PartitionLog
from sequencer.topics.topic_config import TopicConfig
from storage.identifiers import Offset, Partition, ProducerId, TopicId


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


class OffsetExpiryJob:
    """Goes over all committed offsets. Removes those of groups without members for long (KIP-211), and those
    of deleted topics.
    """

    name = "offset-expiry"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.offset_expiry_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page."""
        step = await self._sequencer.group_retention.forget_offsets(
            self._settings.offsets_retention_minutes * 60.0,
            self._settings.offsets_per_step,
            _offset_key(progress),
        )
        return Step(
            progress=None if step.next_after is None else json.dumps(step.next_after, default=str),
            more=step.next_after is not None,
            done={"offsets": step.unused, "offsets_of_deleted_topics": step.of_deleted_topics},
        )


class IdleGroupsJob:
    """Goes over all groups, and removes those with neither members nor offsets."""

    name = "idle-groups"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.idle_groups_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page."""
        step = await self._sequencer.group_retention.remove_idle_groups(
            self._settings.idle_group_grace_s, self._settings.groups_per_step, progress
        )
        return Step(progress=step.next_after, more=step.next_after is not None, done={"groups": step.removed})


def _offset_key(progress: str | None) -> OffsetKey | None:
    if progress is None:
        return None
    group_id, topic_id, partition = json.loads(progress)
    return group_id, TopicId(UUID(topic_id)), Partition(partition)


class RetentionJob:
    """Goes over all live partitions in pages, moves their log starts and drops their runs."""

    name = "retention"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.retention_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page. The next step begins before the first partition that has more to drop than this
        step's share."""
        after = key_of(progress)
        page = await self._sequencer.retention.page(after, self._settings.retention_partitions_per_step)
        busy = [log for log in page.logs if has_work(log, RetentionPolicy.of(log))]
        dropped_runs = dropped_bytes = held = 0
        unfinished: set[PartitionKey] = set()
        for start in range(0, len(busy), self._settings.retention_partitions_at_once):
            some = busy[start : start + self._settings.retention_partitions_at_once]
            share = max(1, self._settings.retention_runs_per_step // len(some))
            expired, still_held = await self._expire(some, share)
            held += still_held
            for key, moved in expired.items():
                dropped_runs, dropped_bytes = (
                    dropped_runs + moved.dropped_runs,
                    dropped_bytes + moved.dropped_bytes,
                )
                if moved.dropped_runs == share:
                    unfinished.add(key)
        next_after = page.next_after
        for log in busy:
            if (log.topic_id, log.partition) in unfinished:
                next_after = after
                break
            after = (log.topic_id, log.partition)
        return Step(
            progress=None if next_after is None else text_of(next_after),
            more=next_after is not None,
            done={**_dropped(dropped_runs, dropped_bytes), "held_for_history": held},
        )

    async def _expire(
        self, logs: Sequence[PartitionLog], share: int
    ) -> tuple[Mapping[PartitionKey, Moved], int]:
        """Drops at most `share` runs of each, in one transaction. Returns with it how many partitions keep
        expired records because these are not in history yet.
        """
        oldest = await self._sequencer.retention.with_oldest_runs(logs, share)
        before = {(log.topic_id, log.partition): keep_from(log, RetentionPolicy.of(log)) for log in oldest}
        moved = await self._sequencer.retention.expire(before, share)
        return moved, sum(each.log_start_offset < before[key] for key, each in moved.items())


class TopicSweepJob:
    """Removes what deleted topics left: the rows of their history, their runs, their producers' states, and
    finally their own rows.
    """

    name = "topic-sweep"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.topic_sweep_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        partitions_cap = self._settings.topic_sweep_partitions_per_step
        histories = await self._sequencer.history.garbage.drop_deleted(partitions_cap)
        swept = await self._sequencer.retention.sweep_deleted_topics(
            partitions_cap=partitions_cap, rows_cap=self._settings.topic_sweep_rows_per_step
        )
        return Step(
            progress=progress,
            more=swept.more or histories == partitions_cap,
            done={
                "runs": swept.runs,
                "partitions": swept.partitions,
                "topics": swept.topics,
                "histories": histories,
            },
        )


class ProducerExpiryJob:
    """Forgets idempotent producers that have not written for long."""

    name = "producer-expiry"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.producer_expiry_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page of all producers' states."""
        step = await self._sequencer.producers.expire(
            self._settings.producer_expiry_s, self._settings.producers_per_step, _producer_key(progress)
        )
        reached = step.next_after
        return Step(
            progress=None if reached is None else "/".join(map(str, reached)),
            more=reached is not None,
            done={"producers": step.expired},
        )


def _dropped(runs: int, size_bytes: int) -> dict[str, int]:
    return {"runs": runs, "bytes": size_bytes}


def _producer_key(progress: str | None) -> ProducerKey | None:
    if progress is None:
        return None
    topic_id, partition, producer_id = progress.split("/")
    return TopicId(UUID(topic_id)), Partition(int(partition)), ProducerId(int(producer_id))


def text_of(key: PartitionKey) -> str:
    return f"{key[0]}/{key[1]}"


def key_of(progress: str | None) -> PartitionKey:
    if progress is None:
        return BEFORE_ALL
    topic_id, _, partition = progress.partition("/")
    return TopicId(UUID(topic_id)), Partition(int(partition))
