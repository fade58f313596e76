"""The group coordinator on a real Postgres: claims and fences, take-overs, unloading. Every waiting request
is answered, however its group ends.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from agent.groups.events import (
    ConsumerHeartbeatAnswer,
    GroupFault,
    GroupState,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    LeavingMember,
    StreamsHeartbeatAnswer,
    SyncAnswer,
)
from sequencer.client import Sequencer, SequencerSettings
from storage.identifiers import Partition, TopicId
from tests.agent.groups.wired import Coordinating, coordinating
from tests.agent.running import until_answered
from tests.support.replication import Replication
from tests.support.waiting import until


@pytest.fixture
async def topic_id(sequencer: Sequencer) -> TopicId:
    return (await sequencer.topics.create("orders", 3, {})).topic_id


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Sequencer]:
    """Another agent's connections to the same database."""
    opened = await Sequencer.open(database_url, SequencerSettings())
    yield opened
    await opened.close()


def a_group_of(agent: Coordinating) -> str:
    """A group that the agent coordinates by its view of the ring."""
    return next(name for number in range(1000) if agent.coordinator.coordinates(name := f"group-{number}"))


async def leave(agent: Coordinating, group_id: str, member_id: str) -> LeaveAnswer | GroupFault:
    event = Leave(
        token=agent.coordinator.next_token(), members=(LeavingMember(member_id=member_id, instance_id=None),)
    )  # fmt: skip
    return await agent.coordinator.ask(group_id, event, LeaveAnswer)


# --- claims


async def test_a_group_is_claimed_before_its_first_answer(sequencer: Sequencer) -> None:
    async with coordinating(sequencer) as agent:
        await agent.member("readers")

        [listed] = await sequencer.groups.list()
    self_ = listed.coordinator
    assert (listed.group_id, listed.state, self_) == ("readers", "Stable", 1)


async def test_looking_for_a_group_does_not_create_it(sequencer: Sequencer) -> None:
    async with coordinating(sequencer) as agent:
        found = await agent.coordinator.group("nobody")

    assert found is GroupFault.GROUP_NOT_FOUND
    assert await sequencer.groups.list() == []


async def test_requests_that_come_while_a_group_is_loaded_share_the_load(sequencer: Sequencer) -> None:
    async with coordinating(sequencer) as agent:
        looked, *made = await asyncio.gather(
            agent.coordinator.group("readers"), *(agent.loaded("readers", create=True) for _ in range(20))
        )

        assert looked is GroupFault.GROUP_NOT_FOUND
        assert len({id(running) for running in made}) == 1


async def test_a_heartbeat_touches_no_database(sequencer: Sequencer) -> None:
    async with coordinating(sequencer, group_lease_renew_s=20.0) as agent:
        joined = await agent.member("readers")

        await sequencer.close()

        assert [await agent.beat("readers", joined) for _ in range(3)] == [None] * 3


async def test_a_group_of_another_agent_is_refused(sequencer: Sequencer, other: Sequencer) -> None:
    async with coordinating(sequencer) as first, coordinating(other) as second:
        await until(lambda: len(first.membership.ring.agents) == 2)
        group_id = a_group_of(second)

        assert await first.join(group_id) is GroupFault.NOT_COORDINATOR
        assert await first.coordinator.group(group_id, create=True) is GroupFault.NOT_COORDINATOR


async def test_any_agent_answers_the_offsets_of_any_group(
    sequencer: Sequencer, other: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer) as first, coordinating(other) as second:
        await until(lambda: len(first.membership.ring.agents) == 2)
        group_id = a_group_of(second)

        assert await first.committed(group_id, topic_id) == -1
        joined = await second.member(group_id)
        assert await second.commit(group_id, topic_id, 10, joined.member_id, joined.generation) is None

        assert await first.committed(group_id, topic_id) == 10
        first.coordinator.drain()
        assert await first.committed(a_group_of(first), topic_id) == -1
        assert await first.committed(group_id, topic_id) == 10


# --- two coordinators of one group


async def test_the_earlier_of_two_coordinators_is_fenced(
    sequencer: Sequencer, other: Sequencer, topic_id: TopicId
) -> None:
    """The first does not see that the second came: both believe that they coordinate the group."""
    async with coordinating(sequencer, group_lease_renew_s=20.0) as first:
        await first.blind()
        async with coordinating(other) as second:
            group_id = a_group_of(second)
            joined = await first.member(group_id)
            assert await first.commit(group_id, topic_id, 10, joined.member_id, joined.generation) is None

            await second.loaded(group_id)

            refused = await first.commit(group_id, topic_id, 5, joined.member_id, joined.generation)
            assert refused is GroupFault.NOT_COORDINATOR
            assert await second.committed(group_id, topic_id) == 10
            assert await first.committed(group_id, topic_id) == 10


async def test_a_change_by_a_fenced_coordinator_is_neither_written_nor_answered(
    sequencer: Sequencer, other: Sequencer
) -> None:
    async with coordinating(sequencer, group_lease_renew_s=20.0) as first:
        await first.blind()
        async with coordinating(other) as second:
            group_id = a_group_of(second)
            joined = await first.member(group_id)
            await second.loaded(group_id)

            assert await leave(first, group_id, joined.member_id) is GroupFault.NOT_COORDINATOR
            assert await second.beat(group_id, joined) is None


async def test_a_coordinator_learns_within_its_lease_that_it_was_fenced(
    sequencer: Sequencer, other: Sequencer
) -> None:  # fmt: skip
    async with coordinating(sequencer) as first:
        await first.blind()
        async with coordinating(other) as second:
            group_id = a_group_of(second)
            await first.member(group_id)
            running = await first.loaded(group_id)

            await second.loaded(group_id)

            await until(lambda: running.ended)


# --- take-overs


async def test_a_take_over_keeps_members_generation_and_assignments(
    sequencer: Sequencer, other: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer) as first:
        joined = await first.member("readers")
        assert await first.commit("readers", topic_id, 7, joined.member_id, joined.generation) is None
    async with coordinating(other) as second:
        assert await second.beat("readers", joined) is None
        assert await second.sync("readers", joined, b"") == SyncAnswer(
            protocol_type="consumer", protocol_name="range", assignment=b"its part"
        )
        assert await second.committed("readers", topic_id) == 7
        assert await second.commit("readers", topic_id, 8, joined.member_id, joined.generation) is None


async def test_a_take_over_in_the_new_protocol_costs_nothing(
    sequencer: Sequencer, other: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer) as first:
        joined = await first.consume("readers", 0)
        assert isinstance(joined, ConsumerHeartbeatAnswer)
        assert joined.assignment == {topic_id: frozenset(range(3))}
    async with coordinating(other) as second:
        again = await second.consume("readers", joined.member_epoch)

        assert isinstance(again, ConsumerHeartbeatAnswer)
        assert (again.fault, again.member_epoch) == (None, joined.member_epoch)
        assert await second.commit("readers", topic_id, 3, "ann", joined.member_epoch) is None


async def test_a_take_over_of_a_streams_group_costs_nothing(sequencer: Sequencer, other: Sequencer) -> None:
    source = await sequencer.topics.create("lines", 3, {})
    async with coordinating(sequencer) as first:
        joined = await first.stream("words", 0)
        assert isinstance(joined, StreamsHeartbeatAnswer)
        told = await first.stream("words", joined.member_epoch)
        assert isinstance(told, StreamsHeartbeatAnswer)
        assert told.tasks is not None
        assert told.tasks.active == {"0": frozenset(range(3)), "1": frozenset(range(3))}
    async with coordinating(other) as second:
        again = await second.stream("words", told.member_epoch)

        assert isinstance(again, StreamsHeartbeatAnswer)
        assert (again.fault, again.member_epoch, again.statuses) == (None, told.member_epoch, ())
        assert await second.commit("words", source.topic_id, 3, "ann", told.member_epoch) is None
    created = await other.topics.by_name(["words", "counts"])
    assert {topic.partition_count for topic in created.values()} == {3}


async def test_two_coordinators_that_create_the_same_topic_do_not_fail(
    sequencer: Sequencer, other: Sequencer
) -> None:
    await sequencer.topics.create("lines", 1, {})
    async with coordinating(sequencer) as first, coordinating(other) as second:
        one, two = "words-of-one", "words-of-two"
        agents = {group: first if first.coordinator.coordinates(group) else second for group in (one, two)}

        await asyncio.gather(*(agent.stream(group, 0) for group, agent in agents.items()))

        for group, agent in agents.items():
            told = await agent.stream(group, 0)
            assert isinstance(told, StreamsHeartbeatAnswer)
            assert (told.fault, told.statuses) == (None, ())


async def test_new_partitions_reach_a_group_of_the_new_protocol(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer) as agent:
        joined = await agent.consume("readers", 0)
        assert isinstance(joined, ConsumerHeartbeatAnswer)

        await sequencer.topics.add_partitions("orders", 5)

        async def all_assigned() -> bool:
            answer = await agent.consume("readers", joined.member_epoch)
            return isinstance(answer, ConsumerHeartbeatAnswer) and answer.assignment == {
                topic_id: frozenset(range(5))
            }

        await until_answered(all_assigned)


async def test_a_group_that_died_with_its_coordinator_becomes_empty(
    sequencer: Sequencer, other: Sequencer
) -> None:
    async with coordinating(sequencer, group_min_session_timeout_ms=1) as first:
        joined = await first.join("readers", session_timeout_ms=300)
        assert isinstance(joined, JoinAnswer)
        await first.sync("readers", joined, b"its part")
    async with coordinating(other, group_adopt_s=0.1):

        async def empty() -> bool:
            [listed] = await other.groups.list()
            return listed.state == "Empty"

        await until_answered(empty)


# --- how groups end


async def test_waiting_joins_are_redirected_when_the_ring_moves_their_group(
    sequencer: Sequencer, other: Sequencer
) -> None:
    async with coordinating(sequencer, group_initial_rebalance_delay_ms=25_000) as first:
        waiting = {
            f"group-{number}": asyncio.create_task(first.join(f"group-{number}")) for number in range(20)
        }
        await until(lambda: first.coordinator.count_by_state().total() == 20)

        async with coordinating(other) as second:
            moved = [group_id for group_id in waiting if second.coordinator.coordinates(group_id)]
            async with asyncio.timeout(60):
                answers = [await waiting[group_id] for group_id in moved]

            assert answers == [GroupFault.NOT_COORDINATOR] * len(moved)
            assert 0 < len(moved) < 20
            assert not any(waiting[group_id].done() for group_id in waiting.keys() - moved)
        for task in waiting.values():
            task.cancel()


async def test_a_drain_redirects_waiting_joins_and_new_requests(sequencer: Sequencer) -> None:
    async with coordinating(sequencer, group_initial_rebalance_delay_ms=25_000) as agent:
        waiting = asyncio.create_task(agent.join("readers"))
        await until(lambda: agent.coordinator.count_by_state().total() == 1)

        agent.coordinator.drain()

        assert await waiting is GroupFault.NOT_COORDINATOR
        assert await agent.join("others") is GroupFault.NOT_COORDINATOR


async def test_an_agent_that_left_the_ring_answers_for_no_group(sequencer: Sequencer) -> None:
    async with coordinating(sequencer) as agent:
        joined = await agent.member("readers")

        await agent.blind()
        await agent.membership.leave()

        assert await agent.beat("readers", joined) is GroupFault.NOT_COORDINATOR


async def test_an_idle_group_leaves_memory_and_comes_back_with_its_offsets(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer, group_idle_s=0.1) as agent:
        assert await agent.commit("simple", topic_id, 4) is None
        running = await agent.loaded("simple")

        await until(lambda: running.ended)

        assert await agent.committed("simple", topic_id) == 4


async def test_a_group_with_members_stays_in_memory(sequencer: Sequencer) -> None:
    async with coordinating(sequencer, group_idle_s=0.05) as agent:
        await agent.member("readers")
        idle = await agent.loaded("idle", create=True)

        await until(lambda: idle.ended)

        assert agent.coordinator.count_by_state() == {("classic", "Stable"): 1}


async def test_no_member_waits_for_a_client_that_hung_up(sequencer: Sequencer) -> None:
    async with coordinating(sequencer, group_initial_rebalance_delay_ms=300) as agent:
        joining = asyncio.create_task(agent.join("readers"))
        await until(lambda: agent.coordinator.count_by_state() == {("classic", "PreparingRebalance"): 1})

        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)

        running = await agent.loaded("readers")
        await until(lambda: running.machine.generation == 1)
        assert not running.ended


async def test_a_deleted_group_is_gone_with_its_offsets(sequencer: Sequencer, topic_id: TopicId) -> None:
    async with coordinating(sequencer) as agent:
        joined = await agent.member("readers")
        await agent.commit("readers", topic_id, 4, joined.member_id, joined.generation)
        kept = await agent.coordinator.delete("readers")
        await leave(agent, "readers", joined.member_id)

        gone = await agent.coordinator.delete("readers")

        assert (kept, gone) == (GroupFault.GROUP_NOT_EMPTY, None)
        assert await agent.coordinator.delete("readers") is GroupFault.GROUP_NOT_FOUND
        assert await agent.commit("readers", topic_id, 1) is None
        assert await agent.committed("readers", topic_id) == 1


# --- Postgres away


async def test_without_postgres_requests_get_a_retriable_error(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer, group_lease_renew_s=20.0) as agent:
        joined = await agent.member("readers")

        await sequencer.close()

        assert await agent.commit("readers", topic_id, 1, joined.member_id, joined.generation) is (
            GroupFault.COORDINATOR_UNAVAILABLE
        )
        assert await agent.committed("readers", topic_id) is GroupFault.COORDINATOR_UNAVAILABLE
        assert await agent.join("readers") is GroupFault.COORDINATOR_UNAVAILABLE
        assert await agent.join("others") is GroupFault.COORDINATOR_UNAVAILABLE


async def test_no_member_is_expelled_while_postgres_is_away(sequencer: Sequencer, other: Sequencer) -> None:
    """The group is unloaded when its lease is over. The coordinator that loads it restarts its members'
    sessions.
    """
    async with coordinating(sequencer, group_lease_s=1.0, group_min_session_timeout_ms=1) as agent:
        joined = await agent.join("readers", session_timeout_ms=3_000)
        assert isinstance(joined, JoinAnswer)
        await agent.sync("readers", joined, b"its part")
        running = await agent.loaded("readers")

        await sequencer.close()

        await until(lambda: running.ended)
        assert await agent.beat("readers", joined) is GroupFault.COORDINATOR_UNAVAILABLE
    [listed] = await other.groups.list()
    assert listed.state == "Stable"


async def test_after_a_pause_longer_than_the_lease_no_members_silence_counts(
    sequencer: Sequencer,
) -> None:
    """Postgres would still name this coordinator, and healthy members could not be heard meanwhile."""
    async with coordinating(sequencer, group_lease_s=1.0, group_lease_renew_s=0.1) as agent:
        joined = await agent.member("readers")
        paused = await agent.loaded("readers")

        time.sleep(1.5)  # noqa: ASYNC251  # the whole process stands still

        await until(lambda: paused.ended)
        assert await agent.beat("readers", joined) is None


async def test_a_commit_whose_outcome_is_unknown_is_fenced_before_the_next(
    database_url: str, sequencer: Sequencer, topic_id: TopicId
) -> None:
    """Another session holds the group's row: Postgres ends the statement, and the next commit goes under a
    new epoch.
    """
    impatient = await Sequencer.open(database_url, SequencerSettings(database_statement_timeout_ms=1500))
    try:
        async with coordinating(impatient, group_lease_renew_s=20.0) as agent:
            assert await agent.commit("simple", topic_id, 1) is None
            epoch = (await agent.loaded("simple")).coordinator_epoch
            async with sequencer.database.transaction() as connection:
                await connection.execute("SELECT FROM groups WHERE group_id = 'simple' FOR NO KEY UPDATE")

                unknown = await agent.commit("simple", topic_id, 2)

            assert unknown is GroupFault.COORDINATOR_UNAVAILABLE
            assert (await agent.loaded("simple")).coordinator_epoch > epoch
            assert await agent.commit("simple", topic_id, 3) is None
            assert await agent.committed("simple", topic_id) == 3
    finally:
        await impatient.close()


async def test_a_deletion_of_offsets_whose_outcome_is_unknown_is_fenced_before_the_next_commit(
    database_url: str, sequencer: Sequencer, topic_id: TopicId
) -> None:
    """Without the fence it might still delete what was committed after it."""
    impatient = await Sequencer.open(database_url, SequencerSettings(database_statement_timeout_ms=1500))
    try:
        async with coordinating(impatient, group_lease_renew_s=20.0) as agent:
            assert await agent.commit("simple", topic_id, 1) is None
            before = await agent.loaded("simple")
            async with sequencer.database.transaction() as connection:
                await connection.execute("SELECT FROM groups WHERE group_id = 'simple' FOR NO KEY UPDATE")

                unknown = await agent.offsets.delete(before, {(topic_id, Partition(0))})

            assert unknown is GroupFault.COORDINATOR_UNAVAILABLE
            assert await agent.commit("simple", topic_id, 2) is None
            late = await sequencer.committed_offsets.delete(
                "simple", before.coordinator_epoch, {(topic_id, Partition(0))}
            )
            assert not late
            assert await agent.committed("simple", topic_id) == 2
    finally:
        await impatient.close()


async def test_groups_are_read_again_from_another_postgres(
    new_replication: Callable[..., Replication],
) -> None:
    """After a failover, what was known here may never have been committed
    (docs/design/ownership.md#one-primary).
    """
    pair = new_replication(synchronous=True)
    sequencer = await Sequencer.open(pair.address.url, SequencerSettings())
    async with coordinating(sequencer) as agent:
        joined = await agent.member("readers")
        running = await agent.loaded("readers")

        pair.fail_over()
        await sequencer.database.check_address()

        assert running.ended
        assert await agent.beat("readers", joined) is None
    await sequencer.close()


# --- overload


async def test_a_request_above_the_queues_bound_gets_a_retriable_error(sequencer: Sequencer) -> None:
    async with coordinating(
        sequencer, group_initial_rebalance_delay_ms=25_000, group_queue_events=3
    ) as agent:
        waiting = [asyncio.create_task(agent.join("readers")) for _ in range(4)]

        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=20)

        assert [task.result() for task in done] == [GroupFault.OVERLOADED]
        assert len(others) == 3
        for task in others:
            task.cancel()


async def test_a_group_above_the_bound_waits_until_another_is_idle(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer, groups_loaded=1) as agent:
        joined = await agent.member("readers")

        assert await agent.join("others") is GroupFault.OVERLOADED
        assert await agent.committed("others", topic_id) == -1
        await leave(agent, "readers", joined.member_id)
        assert isinstance(await agent.join("others"), JoinAnswer)


async def test_a_commit_above_the_queues_bound_gets_a_retriable_error(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer, offset_commit_queue=2) as agent:
        await agent.loaded("simple", create=True)

        verdicts = await asyncio.gather(*(agent.commit("simple", topic_id, offset) for offset in range(3)))

        assert verdicts == [None, None, GroupFault.OVERLOADED]
        assert await agent.committed("simple", topic_id) == 1


# --- shared statements


async def test_commits_of_many_groups_share_statements_and_keep_their_order(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer) as agent:
        groups = [f"group-{number}" for number in range(50)]
        for group_id in groups:
            await agent.loaded(group_id, create=True)

        await asyncio.gather(
            *(agent.commit(group_id, topic_id, offset) for offset in range(10) for group_id in groups)
        )  # fmt: skip

        assert [await agent.committed(group_id, topic_id) for group_id in groups] == [9] * 50
        assert agent.metric("tidelog_offset_commits_per_statement_sum") == 500
        assert agent.metric("tidelog_offset_commits_per_statement_count") < 50


async def test_commits_that_wait_are_not_overtaken_by_the_next_generation(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    """They came in time: Kafka, with its one log, would have taken them."""
    async with coordinating(sequencer) as agent:
        for _ in range(20):
            ann = await agent.member("readers")
            committing = [
                asyncio.create_task(agent.commit("readers", topic_id, offset, ann.member_id, ann.generation))
                for offset in range(20)
            ]
            await asyncio.sleep(0)
            again = await agent.join("readers", ann.member_id)

            assert isinstance(again, JoinAnswer)
            assert again.generation == ann.generation + 1
            assert await asyncio.gather(*committing) == [None] * 20
            await leave(agent, "readers", ann.member_id)


async def test_a_member_that_knows_the_next_generation_commits_under_it(
    sequencer: Sequencer, topic_id: TopicId
) -> None:
    async with coordinating(sequencer) as agent:
        ann = await agent.member("readers")
        joining = asyncio.create_task(agent.join("readers"))
        await until(
            lambda: (
                agent.coordinator.count_by_state() == {("classic", GroupState.PREPARING_REBALANCE.value): 1}
            )
        )

        assert await agent.beat("readers", ann) is GroupFault.REBALANCE_IN_PROGRESS
        assert await agent.commit("readers", topic_id, 5, ann.member_id, ann.generation) is None
        again = await agent.join("readers", ann.member_id)
        bob = await joining
        assert isinstance(again, JoinAnswer)
        assert isinstance(bob, JoinAnswer)
        late = await agent.commit("readers", topic_id, 4, ann.member_id, ann.generation)

        assert (again.generation, bob.generation) == (ann.generation + 1, ann.generation + 1)
        assert late is GroupFault.ILLEGAL_GENERATION
        assert await agent.committed("readers", topic_id) == 5
