"""For tests of merging's SQL, without a store: a log of small runs, claims, outputs, swaps."""

from collections.abc import Collection, Sequence
from itertools import groupby

from sequencer.client import Sequencer
from sequencer.housekeeping.merge_values import (
    Candidate,
    MergeClaim,
    MergedRun,
    MergeOutput,
    PlacedSwap,
    RunToMerge,
    SwapsDone,
    SwapsRefused,
)
from sequencer.housekeeping.merges import BEFORE_ALL, BEGINNING
from sequencer.topics.topics import Topic
from storage.identifiers import BytePosition, SegmentId, new_segment_id
from storage.segments.keys import merged_key
from tests.sequencer.builders import committed
from tests.sequencer.housekeeping.housekeeping import records_of

LEASE_S = 60.0
LONG = 1_000_000
NEVER_AGAIN = 3


async def a_log(sequencer: Sequencer, topic: Topic, segments: int, *, records: int = 2) -> None:
    """This many segments, each with a run in every partition of the topic."""
    for number in range(segments):
        batches = [
            records_of(topic, records, partition=partition, timestamp_ms=1_000 + number)
            for partition in range(topic.partition_count)
        ]
        await committed(sequencer, batches)


async def discovered(sequencer: Sequencer) -> int:
    """Makes everything committed a candidate."""
    found = await sequencer.merges.discover(BEGINNING, settle_s=0, long_run_bytes=LONG, cap=1000)
    return found.added


def everything(candidates: Sequence[Candidate]) -> Collection[SegmentId]:
    return [candidate.segment_id for candidate in candidates]


async def claimed(sequencer: Sequencer, tier: int = 0) -> MergeClaim:
    claim = await sequencer.merges.claim(tier, everything, cap=1000, lease_s=LEASE_S, long_run_bytes=LONG)
    assert claim is not None
    return claim


async def an_output(sequencer: Sequencer, claim: MergeClaim, size_bytes: int = 10_000) -> MergeOutput:
    """Reserved and held, as before its upload."""
    segment_id = new_segment_id()
    key = merged_key("tidelog", segment_id)
    await sequencer.reservations.reserve({segment_id: key}, 900.0, "merge")
    await sequencer.holds.take(claim.job_id, [segment_id], lease_s=LEASE_S)
    return MergeOutput(
        segment_id=segment_id,
        object_key=key,
        size_bytes=size_bytes,
        tier=claim.tier + 1,
        newest=claim.newest,
        may_be_merged_again=claim.tier + 1 < NEVER_AGAIN,
    )


def one_swap_each(runs: Sequence[RunToMerge]) -> list[PlacedSwap]:
    """All runs of each partition become one."""
    swaps: list[PlacedSwap] = []
    position = 64
    for _, group in groupby(runs, key=lambda run: run.key):
        replaced = tuple(group)
        made = merged(replaced, position)
        position += made.length
        swaps.append(PlacedSwap(replaced=replaced, made=(made,)))
    return swaps


def merged(runs: Sequence[RunToMerge], position: int) -> MergedRun:
    return MergedRun(
        base_offset=runs[0].base_offset,
        last_offset=runs[-1].last_offset,
        position=BytePosition(position),
        length=sum(run.length for run in runs),
        min_timestamp_ms=min(run.min_timestamp_ms for run in runs),
        max_timestamp_ms=max(run.max_timestamp_ms for run in runs),
    )


async def planned(sequencer: Sequencer, claim: MergeClaim) -> list[PlacedSwap]:
    return one_swap_each(await sequencer.merges.runs(claim, BEFORE_ALL, 1000))


async def merge_all(sequencer: Sequencer) -> tuple[MergeClaim, MergeOutput, SwapsDone | SwapsRefused]:
    """Everything of tier 0 into one object, without ending the claim."""
    await discovered(sequencer)
    claim = await claimed(sequencer)
    swaps, output = await planned(sequencer, claim), await an_output(sequencer, claim)
    return claim, output, await sequencer.merges.publish(claim, output, swaps)


async def runs_of(sequencer: Sequencer, topic: Topic, partition: int = 0) -> list[tuple[int, int]]:
    """Each run's first and last offset."""
    rows = await sequencer.database.run(
        "SELECT base_offset, last_offset FROM runs WHERE topic_id = %(topic_id)s AND partition = "
        "%(partition)s ORDER BY base_offset",
        topic_id=topic.topic_id,
        partition=partition,
    )
    return [(row.base_offset, row.last_offset) for row in rows]
