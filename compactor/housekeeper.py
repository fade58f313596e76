"""The housekeeper: runs the cluster's jobs for ever, each at its own pace, within an agent or alone, merges,
and cleans compacted topics.

Promises:
- A job runs in one housekeeper at a time (`sequencer/housekeeping/jobs.py`), in steps of bounded size.
- A failure is logged once, counted and retried. It stops no other job.
- A job may be cancelled at any moment. Another housekeeper takes over what it left.
- No job runs while the bucket belongs to another database.

Renews the ownership of the bucket (`sequencer/cluster/ownership.py`). Only this job proves that this
database's log is the one that the bucket holds.

The observer measures, once for the whole cluster, what all agents need. Each agent reads the result.

Promises:
- One agent measures at a time, under the job's lease. If it dies, another agent takes its next turn; if it
  dies while it measures, once the lease has ended. Two at once do no harm
  (`sequencer/housekeeping/observations.py`).
- An agent keeps the last result. Decisions get a result younger than `observation_stale_s`, or none.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from uuid import uuid4

from prometheus_client import CollectorRegistry

from compactor.cleaning import Cleaner, CleaningDiscoveryJob
from compactor.garbage_jobs import (
    DoomingJob,
    GarbageDeletionJob,
    GarbageScanJob,
    HistoryGarbageJob,
    KeyCopiesJob,
)
from compactor.history_log_jobs import HistoryRetentionJob, LocalRetentionJob
from compactor.job import Job, Step
from compactor.journal_writer import CheckpointJob, JournalJob, JournalWriter
from compactor.merging import MergeDiscoveryJob, Merger
from compactor.metrics import CleaningMetrics, HousekeeperMetrics, MergeMetrics
from compactor.retention_jobs import (
    IdleGroupsJob,
    OffsetExpiryJob,
    ProducerExpiryJob,
    RetentionJob,
    TopicSweepJob,
)
from compactor.settings import HousekeeperSettings
from compactor.transaction_jobs import (
    AbortedTransactionsJob,
    SinkExpiryJob,
    TransactionalIdExpiryJob,
    TransactionTimeoutJob,
)
from sequencer.client import Sequencer
from sequencer.cluster.ownership import Confirmed, OwnershipUnconfirmed, Watching
from sequencer.cluster.ownership_rules import Lost
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.housekeeping.jobs import Claim
from sequencer.housekeeping.merge_values import Backlog
from sequencer.housekeeping.observations import Observation, ObservationBounds
from sequencer.topics.topic_key_cache import TopicKeys
from storage.stores.object_store import ObjectChanged, ObjectStore, StoreUnavailable

log = logging.getLogger("tidelog")


class OwnershipJob:
    """Costs two GETs and one PUT per pause and cluster."""

    name = "ownership"

    def __init__(
        self, sequencer: Sequencer, store: ObjectStore, cluster: str, settings: HousekeeperSettings
    ) -> None:
        self.interval_s = settings.ownership_ratchet_s
        self._ownership = sequencer.ownership
        self._store = store
        self._cluster = cluster
        self._was_watching = False

    async def step(self, progress: str | None) -> Step:
        found = await self._ownership.ratchet(self._store, self._cluster, ratchet_s=self.interval_s)
        if isinstance(found, Lost):
            log.error("this database does not own the bucket: no jobs run", extra={"reason": found.because})
        elif isinstance(found, Watching) and not self._was_watching:
            log.info(
                "Postgres was started: the bucket is watched first", extra={"left_s": round(found.left_s)}
            )
        self._was_watching = isinstance(found, Watching)
        return Step(progress=progress, done={"ratchets": int(found == Confirmed())})


class ObserverJob:
    """Measures."""

    name = "observation"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.observation_interval_s
        self._observations = sequencer.observations
        self._bounds = bounds_of(settings)

    async def step(self, progress: str | None) -> Step:
        """Measures once. The result is dropped if another agent has a newer one."""
        is_newest = await self._observations.observe(self._bounds)
        return Step(progress=progress, done={"measured" if is_newest else "late": 1})


class LastObservation:
    """The last result that this agent read. The caller reads it again every `observation_interval_s`."""

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings) -> None:
        self._observations = sequencer.observations
        self._stale_s = settings.observation_stale_s
        self._last: Observation | None = None
        self._measured_s = float("-inf")

    async def read(self) -> Observation | None:
        """None if there is no result yet. Raises SequencerUnavailable."""
        asked_s = time.monotonic()
        last = await self._observations.latest()
        if last is not None:
            self._last, self._measured_s = last, asked_s - last.age_s
        return last

    @property
    def age_s(self) -> float:
        """Grows between two readings, also while the database is away. Infinite before the first."""
        return time.monotonic() - self._measured_s

    def fresh(self) -> Observation | None:
        """Returns the result for decisions; None if it is stale."""
        return self._last if self.age_s <= self._stale_s else None

    async def backlog(self) -> Backlog:
        """Returns what waits to be merged. A stale result counts as nothing, so nothing is merged because of
        it."""
        fresh = self.fresh()
        return Backlog(tiers=(), agents=1) if fresh is None else fresh.backlog


def bounds_of(settings: HousekeeperSettings) -> ObservationBounds:
    return ObservationBounds(
        segments=settings.observation_segments, candidates=settings.observation_candidates
    )


_EXPECTED = (
    SequencerUnavailable,
    CommitOutcomeUnknown,
    StoreUnavailable,
    OwnershipUnconfirmed,
    ObjectChanged,
)
_RELEASE_TIMEOUT_S = 2.0
"""How long a cancelled job may take to give its claim back. After that its lease has to end."""
_AGENTS_PER_TURN = 4
"""About this many agents come to a job in each of its intervals, whatever their number, within
`job_patience`."""


class Housekeeper:
    """`registry` gets its metrics. `load` tells how busy the agent in this process is, from 0 to 1.
    `keys` are those of encrypted topics, whose cleaning waits without it."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        settings: HousekeeperSettings,
        registry: CollectorRegistry | None = None,
        *,
        cluster: str = "tidelog",
        load: Callable[[], float] = lambda: 0.0,
        keys: TopicKeys | None = None,
    ) -> None:
        registry = registry or CollectorRegistry()
        self._sequencer = sequencer
        self._settings = settings
        self._holder = uuid4()
        self._dooming = DoomingJob(sequencer, settings)
        self._merge_metrics = MergeMetrics(registry)
        self.observed = LastObservation(sequencer, settings)
        self.merger = Merger(
            sequencer, store, cluster, settings, self._merge_metrics, self.observed.backlog, load
        )
        self.cleaner = Cleaner(
            sequencer, store, cluster, settings, CleaningMetrics(registry), load, keys=keys
        )
        journal = JournalWriter(sequencer, store, cluster, settings)
        self.jobs: tuple[Job, ...] = (
            OwnershipJob(sequencer, store, cluster, settings),
            JournalJob(journal, settings),
            CheckpointJob(journal, settings),
            RetentionJob(sequencer, settings),
            LocalRetentionJob(sequencer, settings),
            HistoryRetentionJob(sequencer, settings),
            TopicSweepJob(sequencer, settings),
            ProducerExpiryJob(sequencer, settings),
            TransactionTimeoutJob(sequencer, settings),
            TransactionalIdExpiryJob(sequencer, settings),
            SinkExpiryJob(sequencer, settings),
            AbortedTransactionsJob(sequencer, settings),
            OffsetExpiryJob(sequencer, settings),
            IdleGroupsJob(sequencer, settings),
            self._dooming,
            GarbageScanJob(sequencer, settings),
            GarbageDeletionJob(sequencer, store, settings),
            HistoryGarbageJob(sequencer, store, settings),
            KeyCopiesJob(sequencer, store, cluster, settings),
            MergeDiscoveryJob(sequencer, settings, self.merger.policy),
            CleaningDiscoveryJob(sequencer, settings),
            ObserverJob(sequencer, settings),
        )
        self.metrics = HousekeeperMetrics(registry)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for job in self.jobs:
                group.create_task(self._keep_doing(job), name=f"job {job.name}")
            group.create_task(self.merger.run(), name="merging")
            group.create_task(self.cleaner.run(), name="cleaning")
            group.create_task(self._keep_reading(), name="reading of observations")

    async def run_once(self, job: Job) -> bool:
        """Claims the job and works until it is done or `job_run_s` is over. False: another housekeeper has
        it, or it is not due.
        """
        claim = await self._sequencer.jobs.claim(
            job.name,
            self._holder,
            lease_s=self._settings.job_lease_s,
            min_interval_s=job.interval_s / 2,  # with jitter, several housekeepers stay within twice the pace
        )
        if claim is None:
            return False
        try:
            await self._work(job, claim)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, SequencerUnavailable):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await self._sequencer.jobs.fail(claim, "stopped")
            raise
        except Exception as error:
            with contextlib.suppress(SequencerUnavailable):
                await self._sequencer.jobs.fail(claim, f"{type(error).__name__}: {error}")
            raise
        return True

    async def _work(self, job: Job, claim: Claim) -> None:
        ends_s = time.monotonic() + self._settings.job_run_s
        progress = claim.progress
        while True:
            step = await self._step(job, claim, progress)
            if step is None:
                return None  # it took too long, and another housekeeper continues
            self.metrics.did(job.name, step.done)
            progress = step.progress
            if not step.more or time.monotonic() >= ends_s:
                return await self._sequencer.jobs.succeed(claim, progress=progress)
            if not await self._sequencer.jobs.renew(
                claim, lease_s=self._settings.job_lease_s, progress=progress
            ):
                return None  # it took too long, and another housekeeper continues

    async def _step(self, job: Job, claim: Claim, progress: str | None) -> Step | None:
        """Renews the claim while a step takes long. None: the claim was lost, and the step has ended."""
        step = asyncio.create_task(job.step(progress), name=f"step of {job.name}")
        try:
            while not (await asyncio.wait([step], timeout=self._settings.job_lease_s / 3))[0]:
                if not await self._sequencer.jobs.renew(
                    claim, lease_s=self._settings.job_lease_s, progress=progress
                ):
                    return None
            return step.result()
        finally:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)

    async def _keep_doing(self, job: Job) -> None:
        failures, turns = 0, 1
        await asyncio.sleep(random.uniform(0, min(job.interval_s, self._settings.job_retry_s)))
        while True:
            try:
                was_ours = await self.run_once(job)
            except Exception as error:  # noqa: BLE001 - a broken job stops neither other jobs nor the agent
                failures, turns = failures + 1, 1
                self._note_failure(job, error, first=failures == 1)
                pause_s = min(job.interval_s, self._settings.job_retry_s * 2 ** min(failures - 1, 16))
            else:
                if failures:
                    log.info("job works again", extra={"job": job.name, "failures": failures})
                failures = 0
                turns = 1 if was_ours else min(2 * turns, self._most_turns())
                pause_s = turns * job.interval_s
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))

    def _most_turns(self) -> int:
        """How many of its turns at a job this agent may skip while others do the job. With many agents enough
        still come in time."""
        fresh = self.observed.fresh()
        agents = 1 if fresh is None else fresh.backlog.agents
        return max(1, min(self._settings.job_patience, agents // _AGENTS_PER_TURN))

    def _note_failure(self, job: Job, error: Exception, *, first: bool) -> None:
        """Logs the first failure. Metrics and the jobs' statuses show the following ones."""
        self.metrics.failed(job.name)
        if isinstance(error, SequencerUnavailable | CommitOutcomeUnknown):
            self._dooming.database_was_away()
        if not first:
            return
        if isinstance(error, _EXPECTED):
            log.warning("job failed, retrying", extra={"job": job.name, "error": str(error)})
        else:
            log.error("job broke, retrying", extra={"job": job.name}, exc_info=error)

    async def _keep_reading(self) -> None:
        while True:
            with contextlib.suppress(SequencerUnavailable):  # the jobs report it, and the ages keep growing
                await self.read_observation()
            await asyncio.sleep(self._settings.observation_interval_s * random.uniform(0.8, 1.2))

    async def read_observation(self) -> None:
        """Shows the last measurement in the metrics. Raises SequencerUnavailable."""
        seen = await self.observed.read()
        if seen is not None:
            self.metrics.observe(seen)
            self._merge_metrics.observe(seen.backlog, seen.totals)
