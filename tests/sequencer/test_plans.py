"""The commit and the poll cost what they answer, not what the log holds."""

from collections.abc import Mapping

from sequencer.client import Sequencer
from sequencer.commits.commits import SQL as COMMITS_SQL
from sequencer.commits.commits import Reservations, commit_request
from sequencer.commits.coordinates import SQL as COORDINATES_SQL
from storage.identifiers import Partition, ProducerId, SegmentId, TopicId, new_segment_id
from tests.sequencer.builders import ABatch, reserved
from tests.sequencer.plans import generic_plan, pages_touched, work_statement

PARTITIONS = 1000
RUNS_PER_PARTITION = 100


async def test_the_work_of_a_commit_and_of_a_poll_does_not_grow_with_the_log(sequencer: Sequencer) -> None:
    topic = await sequencer.topics.create("wide", PARTITIONS, {})
    small = await _pages_touched(sequencer, topic.topic_id)
    await _fill(sequencer, topic.topic_id)
    large = await _pages_touched(sequencer, topic.topic_id)

    # An index over 100,000 runs is a level or two deeper than one over none; a scan would touch their 1,500
    # pages.
    for statement, pages in large.items():
        assert pages < small[statement] + 60, (statement, small, large)
        assert pages < 200, (statement, large)


async def _pages_touched(sequencer: Sequencer, topic_id: TopicId) -> Mapping[str, int]:
    """Of a commit of three batches, and of a poll of three partitions that have news."""
    batches = [
        ABatch(topic_id=topic_id, partition=Partition(partition), producer_id=ProducerId(1), sequence=0)
        for partition in (1, 500, 999)
    ]
    # Over the connection that is measured: after the database was filled it reads the catalogue afresh.
    sequencer.reservations = Reservations(sequencer.database)
    segment = await reserved(sequencer, batches)
    polled = {
        "topic_ids": [topic_id] * 3,
        "partitions": [1, 500, 999],
        "known_ends": [0, 0, 0],
        "log_starts": [-1, -1, -1],
        "epochs": [0, 0, 0],
        "max_runs": 2,
        "max_aborted": 2,
    }
    parameters = commit_request([segment]).parameters
    async with sequencer.database.connection() as connection:
        work = await work_statement(connection, "commit_segments")
        return {
            "commit": pages_touched(await generic_plan(connection, COMMITS_SQL["commit"], parameters)),
            "judged commit": pages_touched(await generic_plan(connection, work, parameters)),
            "poll": pages_touched(await generic_plan(connection, COORDINATES_SQL["poll"], polled)),
        }


async def _fill(sequencer: Sequencer, topic_id: TopicId) -> None:
    segment_id: SegmentId = new_segment_id()
    await sequencer.database.run(
        "INSERT INTO segments (segment_id, object_key, writer, lease_until, state)"
        " VALUES (%(segment_id)s, 'key', 'test', clock_timestamp(), 'committed')",
        segment_id=segment_id,
    )
    await sequencer.database.run(
        "INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,"
        " min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)"
        " SELECT %(topic_id)s, partition, base, base, %(segment_id)s, 0, 1, 0, 0, 0"
        " FROM generate_series(0, %(partitions)s - 1) AS partition, generate_series(0, %(runs)s - 1) AS base",
        topic_id=topic_id,
        segment_id=segment_id,
        partitions=PARTITIONS,
        runs=RUNS_PER_PARTITION,
    )
    await sequencer.database.run(
        "UPDATE partitions SET high_watermark = %(runs)s WHERE topic_id = %(topic_id)s",
        topic_id=topic_id,
        runs=RUNS_PER_PARTITION,
    )
    await sequencer.database.run("VACUUM ANALYZE")
