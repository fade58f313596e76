"""The read path on a real Postgres and a real S3 endpoint, with up to two agents in one process."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from agent.read_path.read_decisions import ReadFailure
from agent.read_path.settings import ReadPathSettings
from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from storage.identifiers import Partition
from storage.stores.object_store import ObjectStore
from tests.agent.read_path.a_log import RING, ALog, an_agent_reading, read_now, values_of
from tests.agent.read_path.wired import ReadSide
from tests.support.replication import Replication
from tests.support.waiting import until

NEVER_POLLS = ReadPathSettings(coordinate_poll_s=3600.0)


async def test_what_was_written_is_read_with_its_offsets(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a", "b"], ["c"])
    await log.write(["d"])
    async with an_agent_reading(sequencer, store) as agent:
        [result] = await read_now(agent, log.plan(0))

        assert values_of(result) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
        assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (4, 4, 0)


async def test_a_fetch_from_the_middle_of_a_batch_returns_the_whole_batch(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a", "b"], ["c", "d", "e"], ["f"])
    async with an_agent_reading(sequencer, store) as agent:
        [result] = await read_now(agent, log.plan(3))

        assert values_of(result) == [(2, "c"), (3, "d"), (4, "e"), (5, "f")]


async def test_limits_count_what_goes_out_and_the_first_batch_goes_out_whatever_its_size(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    big = "x" * 10_000
    await log.write([big], [big], [big], more={1: [big]})
    async with an_agent_reading(sequencer, store) as agent:
        tiny = await read_now(agent, log.plan(0, 0, max_bytes=1, partition_max_bytes=1))
        two = await read_now(agent, log.plan(0, 0, max_bytes=25_000))
        per_partition = await read_now(agent, log.plan(0, 0, partition_max_bytes=15_000))

        assert [len(values_of(result)) for result in tiny] == [1, 0]
        assert [len(values_of(result)) for result in two] == [2, 0]
        assert [len(values_of(result)) for result in per_partition] == [1, 1]


async def test_partitions_fail_one_by_one(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    await log.write(["a"])
    async with an_agent_reading(sequencer, store) as agent:
        results = await read_now(agent, log.plan(0, 7, 0), wait_s=10.0)

        assert [result.failure for result in results] == [
            None,
            ReadFailure.OUT_OF_RANGE,
            ReadFailure.UNKNOWN_PARTITION,
        ]
        assert values_of(results[0]) == [(0, "a")]
        assert results[1].high_watermark == -1


async def test_an_offset_past_the_known_end_is_checked_before_it_is_out_of_range(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a"])
    async with an_agent_reading(sequencer, store, reads=NEVER_POLLS) as agent:
        await read_now(agent, log.plan(0))
        await log.write(["b"], ["c"])  # one commit: a poll that it overtakes finds both of them or none

        [known_to_others] = await read_now(agent, log.plan(2))
        [nowhere] = await read_now(agent, log.plan(4))

        assert values_of(known_to_others) == [(2, "c")]
        assert nowhere.failure is ReadFailure.OUT_OF_RANGE


async def test_a_waiting_fetch_wakes_on_the_agents_own_commit(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    async with an_agent_reading(sequencer, store, reads=NEVER_POLLS) as agent:
        waiting = asyncio.create_task(read_now(agent, log.plan(0), wait_s=60.0))
        await until(lambda: agent.reads.counts.waits == 1)

        written = await log.write(["a"])
        agent.pages.put_own(written.object_key, written.data)
        agent.reads.committed(written.runs)

        [result] = await asyncio.wait_for(waiting, 30)
        assert values_of(result) == [(0, "a")]
        assert agent.pages.pages.counts.gets == 0, "what an agent wrote is in its memory"


async def test_a_waiting_fetch_wakes_on_a_push_from_the_agent_that_wrote(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    async with (
        an_agent_reading(sequencer, store, "a", reads=NEVER_POLLS) as writer,
        an_agent_reading(sequencer, store, "b", reads=NEVER_POLLS) as reader,
    ):
        await until(lambda: len(reader.membership.ring.agents) == 2)
        waiting = asyncio.create_task(read_now(reader, log.plan(0), wait_s=60.0))
        await until(lambda: writer.peer_server.subscriptions == 1)

        written = await log.write(["a"])
        writer.pages.put_own(written.object_key, written.data)
        writer.reads.committed(written.runs)

        [result] = await asyncio.wait_for(waiting, 30)
        assert values_of(result) == [(0, "a")]


async def test_a_late_committer_is_found_by_the_poll(sequencer: Sequencer, store: ObjectStore) -> None:
    """[raced] The first of two commits of different partitions becomes visible last: a cursor would skip
    it.
    """
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    async with an_agent_reading(sequencer, store) as agent:
        waiting = asyncio.create_task(read_now(agent, log.plan(0, 0, min_bytes=100), wait_s=60.0))
        await until(lambda: agent.reads.counts.waits >= 1)

        async with sequencer.database.transaction() as held:
            await held.execute(
                "SELECT 1 FROM partitions WHERE topic_id = %s AND partition = 0 FOR UPDATE", (log.topic_id,)
            )
            late = asyncio.create_task(log.write(["late"]))
            await log.write(["early"], partition=1)
            await until(lambda: agent.reads.coordinates.known_end((log.topic_id, Partition(1))) == 1)
            assert agent.reads.coordinates.known_end((log.topic_id, Partition(0))) == 0
        await late

        results = await asyncio.wait_for(waiting, 30)
        assert [values_of(result) for result in results] == [[(0, "late")], [(0, "early")]]


async def test_a_commit_without_a_push_is_found_after_commits_with_pushes(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    async with an_agent_reading(sequencer, store, polls=False) as agent:
        known, key = agent.reads.coordinates, (log.topic_id, Partition(0))
        await read_now(agent, log.plan(0))
        known.heard((await log.write(["heard of"])).runs)
        for _ in range(20):
            await known._poll_all()  # polls find nothing, so it rests for longer and longer
        await log.write(["missed"])

        ends = []
        for _ in range(4):
            await known._poll_all()
            ends.append(known.known_end(key))
        await log.write(["missed, too"])
        await known._poll_all()

        assert ends[0] == 1, "the partition rests"
        assert ends[-1] == 2
        assert known.known_end(key) == 3, "no rest after a commit that was missed"


async def test_a_push_overtaking_another_does_not_make_readers_skip(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    """[raced] The second commit's push arrives before, or instead of, the first one's."""
    log = await ALog(sequencer=sequencer, store=store).create()
    async with an_agent_reading(sequencer, store) as agent:
        waiting = asyncio.create_task(read_now(agent, log.plan(0, min_bytes=100), wait_s=60.0))
        await until(lambda: agent.reads.counts.waits >= 1)

        await log.write(["first"])
        second = await log.write(["second"])
        agent.reads.coordinates.heard(second.runs)

        [result] = await asyncio.wait_for(waiting, 30)
        assert values_of(result) == [(0, "first"), (1, "second")]


async def test_min_bytes_is_waited_for_until_the_deadline(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a"])
    async with an_agent_reading(sequencer, store) as agent:
        [result] = await read_now(agent, log.plan(0, min_bytes=1_000_000), wait_s=1.0)

        assert values_of(result) == [(0, "a")]
        assert agent.reads.counts.waits >= 1


async def test_a_missing_object_is_asked_for_again_and_is_then_an_alarm(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a"], upload=False)
    async with an_agent_reading(sequencer, store) as agent:
        [result] = await read_now(agent, log.plan(0), wait_s=10.0)

        assert result.failure is ReadFailure.DATA_MISSING
        assert (agent.reads.counts.objects_missing, agent.reads.counts.sequencer_asks) == (1, 2)


async def test_coordinates_of_an_object_that_is_gone_are_replaced_by_fresh_ones(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    first = await log.write(["a"])
    async with an_agent_reading(sequencer, store, reads=NEVER_POLLS) as agent:
        agent.reads.coordinates.find((log.topic_id, Partition(0)), 0, 1, time.monotonic())
        await agent.reads.coordinates.ask({(log.topic_id, Partition(0)): 0})
        second = await log.write(["b"])
        await store.delete([first.object_key])
        async with (
            sequencer.database.transaction() as connection
        ):  # as a merge does: another object, a higher epoch
            await connection.execute(
                "UPDATE runs SET segment_id = (SELECT segment_id FROM segments WHERE object_key = %s), "
                "position = %s, length = %s WHERE base_offset = 0",
                (second.object_key, second.runs[0].position, second.runs[0].length),
            )
            await connection.execute("UPDATE partitions SET coordinate_epoch = coordinate_epoch + 1")

        [result] = await read_now(agent, log.plan(0))

        assert result.failure is None
        assert values_of(result)[0] == (0, "b"), "the object named now"
        assert agent.reads.counts.objects_missing == 0


async def test_a_page_is_read_once_per_zone(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(partitions=3)
    for number in range(12):
        await log.write([f"a{number}"], more={1: [f"b{number}"], 2: [f"c{number}"]})
    async with (
        an_agent_reading(sequencer, store, "a") as one,
        an_agent_reading(sequencer, store, "a") as two,
    ):
        for agent in (one, two):
            await until(partial(_sees_both, agent))

        results = await asyncio.gather(*(read_now(agent, log.plan(0, 0, 0)) for agent in (one, two)))

        for result in results:
            assert [len(values_of(part)) for part in result] == [12, 12, 12]
        assert one.pages.pages.counts.gets + two.pages.pages.counts.gets == 12
        assert one.pages.peers.counts.ranges + two.pages.peers.counts.ranges == 36


async def test_a_peer_that_is_gone_costs_gets_and_no_error(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    for number in range(8):
        await log.write([f"a{number}"])
    async with (
        an_agent_reading(sequencer, store, "a") as one,
        an_agent_reading(sequencer, store, "a") as two,
    ):
        await until(lambda: len(one.membership.ring.agents) == 2)
        await two.peer_server.close()

        [result] = await read_now(one, log.plan(0))

        assert [offset for offset, _ in values_of(result)] == list(range(8))
        assert one.pages.pages.counts.gets == 8


async def test_damaged_bytes_in_memory_are_read_again_from_the_store(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    written = await log.write(["a"])
    async with an_agent_reading(sequencer, store) as agent:
        agent.pages.put_own(written.object_key, bytes(len(written.data)))

        [result] = await read_now(agent, log.plan(0))

        assert values_of(result) == [(0, "a")]


async def test_an_object_larger_than_the_cache_is_served_by_range(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["x" * 100_000], ["y" * 100_000])
    tiny = RING.model_copy(update={"page_cache_bytes": 1000, "catch_up_cache_bytes": 1000})
    async with an_agent_reading(sequencer, store, ring=tiny) as agent:
        [result] = await read_now(agent, log.plan(0))

        assert [len(value) for _, value in values_of(result)] == [100_000, 100_000]
        assert agent.pages.pages.tail_cache.kept_bytes == 0


async def test_a_merged_segment_is_read_page_by_page_each_once_in_a_zone(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    values = [f"{number}-" + "x" * 30_000 for number in range(12)]
    merged = await log.write(*([value] for value in values), more={1: ["other"]}, as_merged=True)
    small_pages = RING.model_copy(update={"history_page_bytes": 65_536})
    async with (
        an_agent_reading(sequencer, store, "a", ring=small_pages) as one,
        an_agent_reading(sequencer, store, "a", ring=small_pages) as two,
    ):
        for agent in (one, two):
            await until(partial(_sees_both, agent))

        for agent in (one, two):
            found: list[tuple[int, str]] = []
            while len(found) < len(values):
                [result] = await read_now(agent, log.plan(len(found), partition_max_bytes=70_000))
                assert result.failure is None
                found += values_of(result)
            assert found == list(enumerate(values))

        pages = -(-len(merged.data) // 65_536)
        assert one.pages.pages.counts.gets + two.pages.pages.counts.gets == pages > 5
        assert one.pages.pages.tail_cache.kept_bytes == two.pages.pages.tail_cache.kept_bytes == 0


async def test_coordinates_of_runs_whose_objects_were_merged_away_are_replaced(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    """A merge raises no epoch: the coordinates of a slow reader may name objects that are gone."""
    log = await ALog(sequencer=sequencer, store=store).create()
    small = [await log.write([f"{number}"]) for number in range(4)]
    async with an_agent_reading(sequencer, store, reads=NEVER_POLLS) as agent:
        await agent.reads.coordinates.ask({(log.topic_id, Partition(0)): 0})
        other = await ALog(sequencer=sequencer, store=store, name="scratch").create()
        whole = await other.write(*([f"{number}"] for number in range(4)), as_merged=True)
        async with sequencer.database.transaction() as connection:
            await connection.execute(
                "DELETE FROM runs WHERE topic_id = %s AND base_offset > 0", (log.topic_id,)
            )
            await connection.execute(
                "UPDATE runs SET segment_id = (SELECT segment_id FROM segments WHERE object_key = %s), "
                "position = %s, length = %s, last_offset = 3 WHERE topic_id = %s",
                (whole.object_key, whole.runs[0].position, whole.runs[0].length, log.topic_id),
            )
        await store.delete([written.object_key for written in small])

        [result] = await read_now(agent, log.plan(2))

        assert values_of(result) == [(2, "2"), (3, "3")]
        assert agent.reads.counts.objects_missing == 0


async def test_history_is_read_in_windows_without_lowering_the_high_watermark(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    for number in range(20):
        await log.write([f"v{number}"])
    few = ReadPathSettings(coordinate_read_runs=3)
    async with an_agent_reading(sequencer, store, reads=few) as agent:
        found: list[tuple[int, str]] = []
        while len(found) < 20:
            [result] = await read_now(agent, log.plan(len(found)))
            assert result.high_watermark == 20
            found += values_of(result)

        assert found == [(number, f"v{number}") for number in range(20)]


async def test_history_is_loaded_ahead_of_a_reader_within_its_own_budget(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    for number in range(6):
        await log.write(["x" * 1000, str(number)])
    history = RING.model_copy(update={"tail_age_s": 0.000_001})
    async with an_agent_reading(sequencer, store, ring=history) as agent:
        await read_now(agent, log.plan(0, partition_max_bytes=1000))

        await until(lambda: agent.pages.pages.counts.gets >= 3)
        assert agent.pages.pages.tail_cache.kept_bytes == 0
        assert agent.pages.pages.catch_up_cache.kept_bytes > 0


async def test_answers_in_memory_are_bounded_and_given_back(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["x" * 10_000])
    bounded = ReadPathSettings(fetch_answer_bytes=15_000, fetch_answer_wait_s=0.2)
    async with an_agent_reading(sequencer, store, reads=bounded) as agent:
        unsent = await agent.reads.fetch(log.plan(0), 0.0)
        [throttled] = await read_now(agent, log.plan(0))
        unsent.release()
        [served] = await read_now(agent, log.plan(0))

        assert [len(values_of(result)) for result in (*unsent.results, throttled, served)] == [1, 0, 1]
        assert (agent.reads.counts.throttled, agent.reads.answer_bytes) == (1, 0)


async def test_a_deleted_topic_is_unknown_to_its_readers(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    async with an_agent_reading(sequencer, store) as agent:
        waiting = asyncio.create_task(read_now(agent, log.plan(0), wait_s=60.0))
        await until(lambda: agent.reads.counts.waits >= 1)

        await sequencer.topics.delete("orders")

        [result] = await asyncio.wait_for(waiting, 30)
        assert result.failure is ReadFailure.UNKNOWN_PARTITION


async def test_cached_records_are_served_while_postgres_is_away(
    database_url: str, store: ObjectStore
) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    log = await ALog(sequencer=sequencer, store=store).create(partitions=2)
    await log.write(["a"])
    async with an_agent_reading(sequencer, store) as agent:
        await read_now(agent, log.plan(0))
        await sequencer.close()

        await asyncio.sleep(agent.reads.settings.coordinate_freshness_s)
        [known] = await read_now(agent, log.plan(0))
        at_end, unknown = await read_now(agent, log.plan(1, 0))

        assert values_of(known) == [(0, "a")]
        assert (at_end.failure, at_end.high_watermark) == (None, 1)
        assert unknown.failure is ReadFailure.UNAVAILABLE


async def test_a_cancelled_fetch_leaves_nothing_behind(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    async with an_agent_reading(sequencer, store) as agent:
        waiting = asyncio.create_task(read_now(agent, log.plan(0), wait_s=60.0))
        await until(lambda: agent.reads.counts.waits == 1)

        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        assert (agent.reads.coordinates.watchers, agent.reads.answer_bytes) == (0, 0)


async def test_a_log_start_that_moved_is_out_of_range_below(sequencer: Sequencer, store: ObjectStore) -> None:
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a"])
    await log.write(["b"])
    async with an_agent_reading(sequencer, store) as agent:
        await read_now(agent, log.plan(0))
        async with sequencer.database.transaction() as connection:
            await connection.execute(
                "UPDATE partitions SET log_start_offset = 1, coordinate_epoch = coordinate_epoch + 1"
            )
        key = (log.topic_id, Partition(0))

        def log_start() -> int | None:
            view = agent.reads.coordinates.find(key, 0, 1, time.monotonic())
            return None if view is None else view.log_start_offset

        await until(lambda: log_start() == 1)

        [below] = await read_now(agent, log.plan(0))
        [at] = await read_now(agent, log.plan(1))

        assert below.failure is ReadFailure.OUT_OF_RANGE
        assert values_of(at) == [(1, "b")]


async def test_partitions_that_do_not_exist_are_neither_polled_nor_subscribed_to(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    log = await ALog(sequencer=sequencer, store=store).create(partitions=1)
    async with an_agent_reading(sequencer, store) as agent:
        await read_now(agent, log.plan(*[0] * 500))

        assert agent.partitions_read.current() == [(log.topic_id, Partition(0))]


async def test_another_primary_empties_the_cache(
    new_replication: Callable[..., Replication], store: ObjectStore
) -> None:
    pair = new_replication(synchronous=True)
    sequencer = await Sequencer.open(pair.address.url, SequencerSettings())
    log = await ALog(sequencer=sequencer, store=store).create()
    await log.write(["a"])
    async with an_agent_reading(sequencer, store) as agent:
        await read_now(agent, log.plan(0))
        waiting = asyncio.create_task(read_now(agent, log.plan(1), wait_s=60.0))
        await until(lambda: agent.reads.counts.waits >= 1)
        asks = agent.reads.counts.sequencer_asks

        pair.fail_over()
        await sequencer.database.check_address()

        await until(lambda: agent.reads.counts.sequencer_asks > asks)
        await log.write(["b"])
        [result] = await asyncio.wait_for(waiting, 30)
        assert values_of(result) == [(1, "b")]
    await sequencer.close()


def _sees_both(agent: ReadSide) -> bool:
    return len(agent.membership.ring.agents) == 2
