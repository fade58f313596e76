"""Merges segments (docs/design/merging.md#copying): claims some, copies their live runs into larger objects,
and swaps the coordinates.

Any number of agents merge at once, each its own segments. `merge_plan.py` decides what to merge,
`merge_controller.py` how fast.

Promises:
- Readers find every record at every moment.
- The worker may be killed, paused or cut off from its database or store at any point. What it had not
  published becomes garbage; what it had published stays.
- A partition that changes meanwhile, or a run with wrong bytes, fails only its own swap.
- Memory, time per claim and effort are bounded (`compactor/settings.py`).

The job that finds what may be merged. The merging itself runs besides the jobs, in every agent
(`merging.py`).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from compactor.job import Step
from compactor.merge_controller import (
    CopyDebt,
    EffortLimits,
    Situation,
    ceiling_bytes_per_s,
    effort_bytes_per_s,
)
from compactor.merge_copy import ByteRange, LaidOut, Layout, ReadRanges, fault_of_run, ranges_to_read
from compactor.merge_plan import (
    MergePolicy,
    RetentionLimits,
    Swap,
    choose_inputs,
    fill_objects,
    is_worth_merging,
    merges_waiting,
    next_tier,
    plan_swaps,
    waiting_bytes,
)
from compactor.metrics import MergeMetrics
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.housekeeping.merge_values import (
    Backlog,
    MergeClaim,
    MergeDone,
    MergeOutput,
    PlacedSwap,
    RunToMerge,
    SwapsRefused,
)
from sequencer.housekeeping.merges import BEFORE_ALL, BEGINNING
from storage.identifiers import SegmentId, new_segment_id
from storage.segments.keys import merged_key
from storage.stores.object_store import ObjectNotFound, ObjectStore, StoreUnavailable
from storage.stores.side_by_side import side_by_side

log = logging.getLogger("tidelog")

_WRITER = "merge"
_READ_BYTES = 4 << 20
_TURN_S = 0.002
"""After computing this long, a merge yields to the event loop."""
_RELEASE_TIMEOUT_S = 2.0
_LONGEST_WAIT_S = 2.0


class ClaimLost(Exception):
    """The merge, or the cleaning, must end: its holds have ended, or its output is doomed. Another one
    continues with its inputs."""


_EXPECTED = (ClaimLost, OwnershipUnconfirmed, SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable)


@dataclass(slots=True, kw_only=True)
class _Merge:
    """One claim in progress."""

    claim: MergeClaim
    held_until_s: float
    outputs: list[SegmentId] = field(default_factory=list)
    done: MergeDone = field(default_factory=MergeDone)
    is_complete: bool = False

    def count(self, **more: int) -> None:
        self.done = replace(
            self.done, **{name: getattr(self.done, name) + number for name, number in more.items()}
        )


class Merger:
    """`backlog` tells what waits in the cluster. `load` tells how busy the agent in this process is, from 0
    to 1."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        cluster: str,
        settings: HousekeeperSettings,
        metrics: MergeMetrics,
        backlog: Callable[[], Awaitable[Backlog]],
        load: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics
        self._backlog = backlog
        self._load = load
        self._limits = EffortLimits(
            target_s=settings.merge_target_s, most_bytes_per_s=settings.merge_max_bytes_per_s
        )
        self._debt = CopyDebt(time.monotonic(), saving_s=2 * settings.merge_interval_s)
        self._turn_ends_s = 0.0
        self.policy = self.policy_of(settings)

    @staticmethod
    def policy_of(settings: HousekeeperSettings) -> MergePolicy:
        return MergePolicy(
            fan_in=settings.merge_fan_in,
            tiers=settings.merge_tiers,
            object_bytes=settings.merge_object_bytes,
            run_bytes=settings.merge_run_bytes,
        )

    async def run(self) -> None:
        """Runs until cancelled. Logs the first of successive failures, and tries again."""
        failures = 0
        while True:
            try:
                worked = await self.merge_once()
            except Exception as error:  # noqa: BLE001 - a failed merge stops neither the jobs nor the agent
                worked, failures = False, failures + 1
                self._note_failure(error, first=failures == 1)
            else:
                failures = 0
            if not worked:
                await asyncio.sleep(self._settings.merge_interval_s * random.uniform(0.8, 1.2))

    async def merge_once(self) -> bool:
        """Claims and merges the most urgent candidates. False if there are none, or too few for now.

        Raises SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable or ClaimLost.
        """
        backlog = await self._backlog()
        effort = effort_bytes_per_s(self._situation(backlog), self._limits)
        self._metrics.effort(effort)
        tier = next_tier(backlog, self.policy)
        if not self._debt.is_paid(effort, time.monotonic()) or tier is None or effort == 0:
            return False
        return await self._merge_tier(tier)

    async def _merge_tier(self, tier: int) -> bool:
        settings = self._settings
        asked_s = time.monotonic()
        cap = settings.merge_segments_per_claim
        claim = await self._sequencer.merges.claim(
            tier,
            lambda candidates: choose_inputs(candidates, self.policy, cap),
            cap=cap,
            lease_s=settings.merge_lease_s,
            long_run_bytes=self.policy.long_run_bytes,
        )
        if claim is None:
            return False
        merge = _Merge(claim=claim, held_until_s=asked_s + settings.merge_lease_s)
        holding = asyncio.create_task(self._keep_holding(merge))
        try:
            await self._work(merge)
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            with contextlib.suppress(TimeoutError, SequencerUnavailable, CommitOutcomeUnknown):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await self._end(merge)
        return True

    # --- one claim

    async def _work(self, merge: _Merge) -> None:
        """Merges object after object, in key order, until all is merged or `merge_job_s` is over."""
        ends_s = time.monotonic() + self._settings.merge_job_s
        after = BEFORE_ALL
        has_more = True
        is_cut = False
        while has_more:
            runs = await self._sequencer.merges.runs(merge.claim, after, self._settings.merge_runs_per_step)
            has_more = len(runs) == self._settings.merge_runs_per_step
            if has_more:
                runs, was_cut = _whole_partitions(runs)
                is_cut = is_cut or was_cut
            for swaps in fill_objects(await self._planned(merge.claim, runs), self.policy.object_bytes):
                began_s, copied_before = time.monotonic(), merge.done.bytes_out
                if merge.outputs and began_s >= ends_s:
                    return
                await self._merge_object(merge, swaps)
                if not await self._keep_below_ceiling(merge.done.bytes_out - copied_before, began_s):
                    return
            after = runs[-1].key if runs else after
        # Inputs without progress are not tried again.
        merge.is_complete = not is_cut or not merge.outputs

    async def _planned(self, claim: MergeClaim, runs: Sequence[RunToMerge]) -> list[Swap]:
        configs, now_ms = await self._sequencer.merges.topic_configs({run.topic_id for run in runs})
        limits = {topic_id: RetentionLimits.of(config) for topic_id, config in configs.items()}
        known = [run for run in runs if run.topic_id in limits]
        swaps = []
        for swap in plan_swaps(known, claim.inputs, limits, now_ms, self.policy):
            swaps.append(swap)
            await self._give_way()
        return swaps

    async def _merge_object(self, merge: _Merge, swaps: Sequence[Swap]) -> None:
        """Reads, checks, lays out, uploads and publishes one object."""
        segment_id = new_segment_id()
        laid_out = await self._laid_out(merge, segment_id, swaps)
        if laid_out is None:
            return
        key = merged_key(self._cluster, segment_id)
        await self._sequencer.reservations.reserve(
            {segment_id: key}, self._settings.reservation_lease_s, _WRITER
        )
        await self._sequencer.holds.take(
            merge.claim.job_id, [segment_id], lease_s=self._settings.merge_lease_s
        )
        await self._store.put(key, laid_out.chunks)
        output = MergeOutput(
            segment_id=segment_id,
            object_key=key,
            size_bytes=laid_out.size_bytes,
            tier=merge.claim.tier + 1,
            newest=merge.claim.newest,
            may_be_merged_again=is_worth_merging(
                merge.claim.tier + 1, laid_out.size_bytes, laid_out.runs, self.policy
            ),
        )
        self._debt.copied(laid_out.size_bytes)
        merge.count(objects_out=1, bytes_out=laid_out.size_bytes)
        for some in _batched(laid_out.swaps, self._settings.merge_runs_per_publish):
            await self._publish(merge, output, some)
        merge.outputs.append(segment_id)

    async def _laid_out(self, merge: _Merge, segment_id: SegmentId, swaps: Sequence[Swap]) -> LaidOut | None:
        read = await self._read(merge.claim, ranges_to_read(swaps, _READ_BYTES))
        layout = Layout(segment_id, _WRITER, run_bytes=self.policy.run_bytes)
        for swap in swaps:
            data = [read.of(run) for run in swap.replaced]
            faults = [(run, fault_of_run(run, found)) for run, found in zip(swap.replaced, data, strict=True)]
            for run, fault in faults:
                if fault:
                    self._alarm(merge, run, fault)
            if not any(fault for _, fault in faults):
                layout.add(swap, data)
            await self._give_way()
        return layout.finish()

    async def _read(self, claim: MergeClaim, spans: Sequence[ByteRange]) -> ReadRanges:
        """Reads `merge_requests` ranges at a time. A missing object gives nothing."""
        read = ReadRanges()
        waiting = iter(spans)

        async def take_turns() -> None:
            for span in waiting:
                with contextlib.suppress(ObjectNotFound):
                    key = claim.inputs[span.segment_id].object_key
                    read.add(span, await self._store.get(key, span.start, span.end))

        await side_by_side(take_turns() for _ in range(self._settings.merge_requests))
        return read

    async def _publish(self, merge: _Merge, output: MergeOutput, swaps: Sequence[PlacedSwap]) -> None:
        places = await publish_until_known(
            self._sequencer, merge.claim, output, swaps, held_until_s=lambda: merge.held_until_s
        )
        done = [swaps[place] for place in places]
        merge.count(
            bytes_in=sum(run.length for swap in done for run in swap.replaced),
            runs_in=sum(len(swap.replaced) for swap in done),
            runs_out=sum(len(swap.made) for swap in done),
            swaps_refused=len(swaps) - len(done),
        )

    async def _end(self, merge: _Merge) -> None:
        done, claim = merge.done, merge.claim
        if merge.is_complete:
            done = replace(done, objects_in=len(claim.inputs))
        await self._sequencer.merges.end(claim, merge.outputs, done, is_complete=merge.is_complete)
        self._metrics.merged(claim.tier + 1, done)
        log.info(
            "merged",
            extra={
                "tier": claim.tier + 1,
                "segments": len(claim.inputs),
                "is_complete": merge.is_complete,
                "objects": done.objects_out,
                "bytes_in": done.bytes_in,
                "bytes_out": done.bytes_out,
                "runs_in": done.runs_in,
                "runs_out": done.runs_out,
                "swaps_refused": done.swaps_refused,
                "runs_damaged": done.runs_damaged,
            },
        )

    def _note_failure(self, error: Exception, *, first: bool) -> None:
        """Logs the first failure. Metrics show the following ones."""
        self._metrics.failed()
        if first and isinstance(error, _EXPECTED):
            log.warning("merging: interrupted, retrying", extra={"error": str(error)})
        elif first:
            log.error("merging: broke, retrying", exc_info=error)

    def _alarm(self, merge: _Merge, run: RunToMerge, fault: str) -> None:
        merge.count(runs_damaged=1)
        log.error(
            "merging: a run is not what it should be; it stays as it is",
            extra={
                "topic_id": str(run.topic_id),
                "partition": run.partition,
                "base_offset": run.base_offset,
                "object_key": merge.claim.inputs[run.segment_id].object_key,
                "fault": fault,
            },
        )

    # --- leases and pace

    async def _keep_holding(self, merge: _Merge) -> None:
        """Renews the holds until cancelled, or until they have ended: then publishing is refused."""
        lease_s = self._settings.merge_lease_s
        while True:
            await asyncio.sleep(lease_s / 4)
            asked_s = time.monotonic()
            with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):
                if not await self._sequencer.holds.renew(merge.claim.job_id, lease_s=lease_s):
                    return
                merge.held_until_s = asked_s + lease_s

    def _situation(self, backlog: Backlog) -> Situation:
        return Situation(
            backlog_bytes=waiting_bytes(backlog, self.policy),
            oldest_s=min(
                (tier.oldest_s for tier in backlog.tiers if merges_waiting(tier, self.policy)), default=0.0
            ),
            mergers=backlog.agents,
            load=self._load(),
        )

    async def _keep_below_ceiling(self, copied_bytes: int, began_s: float) -> bool:
        """After an object, pauses in proportion to its size. False if this agent is too busy to continue."""
        situation = self._situation(await self._backlog())
        ceiling = ceiling_bytes_per_s(situation, self._limits)
        if ceiling == 0:
            return False
        pause_s = copied_bytes / ceiling - (time.monotonic() - began_s)
        await asyncio.sleep(min(max(0.0, pause_s), self._settings.merge_job_s))
        return True

    async def _give_way(self) -> None:
        """Yields to the event loop after computing for a while."""
        if time.monotonic() >= self._turn_ends_s:
            await asyncio.sleep(0)
            self._turn_ends_s = time.monotonic() + _TURN_S


async def publish_until_known(
    sequencer: Sequencer,
    claim: MergeClaim,
    output: MergeOutput,
    swaps: Sequence[PlacedSwap],
    *,
    held_until_s: Callable[[], float],
) -> frozenset[int]:
    """Returns the indexes of the swaps that are done. Repeats a publish with an unknown outcome until the
    outcome is known. Raises ClaimLost if it is not by `held_until_s`, or if nothing may be published any
    more."""
    wait_s = 0.1
    while True:
        try:
            answer = await sequencer.merges.publish(claim, output, swaps)
            break
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            if time.monotonic() > held_until_s():
                raise ClaimLost(f"a publish could not be repeated in time: {error}") from error
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
    if isinstance(answer, SwapsRefused):
        raise ClaimLost(f"the new object {output.object_key} is {answer.reason}")
    return answer.places


def _whole_partitions(runs: list[RunToMerge]) -> tuple[list[RunToMerge], bool]:
    """Returns the runs without the last partition, which may have more. If there is only one partition,
    returns all runs and True."""
    last = runs[-1].key
    whole = [run for run in runs if run.key != last]
    return (whole, False) if whole else (runs, True)


def _batched(swaps: Sequence[PlacedSwap], most_runs: int) -> Iterator[Sequence[PlacedSwap]]:
    """Yields as many swaps at a time as replace `most_runs` runs together, at least one."""
    first = runs = 0
    for place, swap in enumerate(swaps):
        if place > first and runs + len(swap.replaced) > most_runs:
            yield swaps[first:place]
            first, runs = place, 0
        runs += len(swap.replaced)
    yield swaps[first:]


class MergeDiscoveryJob:
    """Follows the commits of segments, from its last position up to `merge_settle_s` ago, and makes
    candidates of them. Releases the claims of dead agents."""

    name = "merge-discovery"

    def __init__(self, sequencer: Sequencer, settings: HousekeeperSettings, policy: MergePolicy) -> None:
        self.interval_s = settings.merge_interval_s
        self._merges = sequencer.merges
        self._settings = settings
        self._policy = policy

    async def step(self, progress: str | None) -> Step:
        """Handles a page of segments. Its progress is never forgotten, so no segment is examined twice."""
        if not self._policy.tiers:
            return Step(progress=progress)
        found = await self._merges.discover(
            _moment(progress),
            settle_s=self._settings.merge_settle_s,
            long_run_bytes=self._policy.long_run_bytes,
            cap=self._settings.garbage_segments_per_step,
        )
        freed = await self._merges.free_lapsed(self._settings.garbage_segments_per_step)
        committed_at, segment_id = found.reached
        return Step(
            progress=f"{committed_at.isoformat()}/{segment_id}",
            more=found.more or freed == self._settings.garbage_segments_per_step,
            done={"candidates": found.added, "freed": freed},
        )


def _moment(progress: str | None) -> tuple[datetime, SegmentId]:
    if progress is None:
        return BEGINNING
    committed_at, _, segment_id = progress.partition("/")
    return datetime.fromisoformat(committed_at), SegmentId(UUID(segment_id))
