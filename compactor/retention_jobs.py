"""The jobs that shorten the log: retention by time and bytes, deleted topics, old producers."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from compactor.job import Step
from compactor.retention_policy import RetentionPolicy, has_work, keep_from
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.commits.producers import ProducerKey
from sequencer.housekeeping.retention import BEFORE_ALL, Moved, PartitionKey, PartitionLog
from storage.identifiers import Partition, ProducerId, TopicId


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
        after = _key(progress)
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
                dropped_runs, dropped_bytes = dropped_runs + moved.dropped_runs, dropped_bytes + moved.dropped_bytes
                if moved.dropped_runs == share:
                    unfinished.add(key)
        next_after = page.next_after
        for log in busy:
            if (log.topic_id, log.partition) in unfinished:
                next_after = after
                break
            after = (log.topic_id, log.partition)
        return Step(
            progress=None if next_after is None else _text(next_after),
            more=next_after is not None,
            done={**_dropped(dropped_runs, dropped_bytes), "held_for_history": held},
        )

    async def _expire(self, logs: Sequence[PartitionLog], share: int) -> tuple[Mapping[PartitionKey, Moved], int]:
        """Drops at most `share` runs of each, in one transaction. Returns with it how many partitions keep expired
        records because these are not in history yet.
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
            done={"runs": swept.runs, "partitions": swept.partitions, "topics": swept.topics, "histories": histories},
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


def _text(key: PartitionKey) -> str:
    return f"{key[0]}/{key[1]}"


def _key(progress: str | None) -> PartitionKey:
    if progress is None:
        return BEFORE_ALL
    topic_id, _, partition = progress.partition("/")
    return TopicId(UUID(topic_id)), Partition(int(partition))
