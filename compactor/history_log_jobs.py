"""The jobs of topics whose log is their history (docs/design/history.md#parquet-is-the-log): they drop raw
runs that are in history, and move the log start through the history.
"""

from collections.abc import Sequence

from compactor.job import Step
from compactor.retention_jobs import RetentionPolicy, keep_from, key_of, text_of
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.history.history_log import LocalDrop, LocalLog, LocalRun
from sequencer.housekeeping.retention import PartitionKey
from sequencer.topics.topic_config import TopicConfig
from storage.identifiers import Offset


def local_drop(log: LocalLog) -> LocalDrop | None:
    """Returns what to drop by `local.retention.ms` and `local.retention.bytes` (KIP-405); None: nothing.

    Pure. Runs go oldest first, until one must stay. A run that did not decode stays and stops nothing.
    """
    config = TopicConfig.of(log.config)
    size_bytes = log.size_bytes
    passed: list[LocalRun] = []
    for run in log.oldest:
        is_old = 0 <= config.local_retention_ms < log.now_ms - run.aged_from_ms
        is_too_much = 0 <= config.local_retention_bytes <= size_bytes - run.length
        if not is_old and not is_too_much:
            break
        passed.append(run)
        size_bytes -= 0 if run.stays_raw else run.length
    if not passed:
        return None
    return LocalDrop(
        topic_id=log.topic_id,
        partition=log.partition,
        local_start=Offset(passed[-1].last_offset + 1),
        runs=[run for run in passed if not run.stays_raw],
    )


class LocalRetentionJob:
    """Goes over the partitions of topics whose log is their history, and drops runs that are there."""

    name = "local-retention"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.retention_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page, and again as long as a partition has more to drop than its share."""
        settings, after = self._settings, key_of(progress)
        cap = settings.retention_partitions_at_once
        share = max(1, settings.retention_runs_per_step // cap)
        logs, next_after = await self._sequencer.history_log.to_shorten(after, cap, share)
        drops = [drop for drop in map(local_drop, logs) if drop is not None]
        done = {"runs": 0, "bytes": 0}
        if drops:
            dropped = await self._sequencer.history_log.drop_local(drops)
            done = {"runs": dropped.runs, "bytes": dropped.size_bytes}
        if _has_more(logs, drops, share):
            return Step(progress=progress, more=True, done=done)
        return _step(next_after, done)


def _has_more(logs: Sequence[LocalLog], drops: Sequence[LocalDrop], share: int) -> bool:
    """True if some partition lost all the runs that were read: the following ones may expire too."""
    reached = {(drop.topic_id, drop.partition): drop.local_start for drop in drops}
    return any(
        len(log.oldest) == share
        and reached.get((log.topic_id, log.partition)) == log.oldest[-1].last_offset + 1
        for log in logs
    )


class HistoryRetentionJob:
    """Goes over the partitions whose log begins in history, and moves their log starts past what has expired
    by `retention.ms` and `retention.bytes`. `tidelog ttl` takes the records out of the table.
    """

    name = "history-retention"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.retention_interval_s
        self._sequencer = sequencer
        self._settings = settings

    async def step(self, progress: str | None) -> Step:
        """Handles one page."""
        settings = self._settings
        cap = settings.retention_partitions_at_once
        share = max(1, settings.retention_runs_per_step // cap)
        logs, next_after = await self._sequencer.history_log.begun_in_history(key_of(progress), cap, share)
        before = {}
        for log, local_start in logs:
            kept_from: int = keep_from(log, RetentionPolicy.of(log))
            if len(log.oldest) < share and all(run.last_offset < kept_from for run in log.oldest):
                kept_from = local_start  # no file below it has a record that must stay
            if kept_from > log.log_start_offset:
                before[log.topic_id, log.partition] = Offset(min(kept_from, local_start))
        moved = await self._sequencer.retention.expire(before, share) if before else {}
        return _step(next_after, {"partitions": len(moved)})


def _step(next_after: PartitionKey | None, done: dict[str, int]) -> Step:
    return Step(
        progress=None if next_after is None else text_of(next_after), more=next_after is not None, done=done
    )
