"""With an authorizer, whose rights decide what a group sees and creates: on a real Postgres, and across
fail-overs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.groups.events import (
    Assignment,
    ConsumerHeartbeatAnswer,
    GroupFault,
    StreamsHeartbeatAnswer,
    TopicShape,
    TopicsSeen,
    TopicsWanted,
)
from sequencer.client import Sequencer
from storage.identifiers import TopicId
from tests.agent.groups.wired import Coordinating, coordinating
from tests.agent.running import until_answered

GROUP = "readers"
ACLS = object()


def only(*names: str) -> Callable[[str], bool]:
    return frozenset(names).__contains__


def everything_but(*names: str) -> Callable[[str], bool]:
    return lambda name: name not in names


@dataclass
class Member:
    """A consumer that owns what it is assigned."""

    name: str
    may_see: Callable[[str], bool] | None
    epoch: int = 0
    assigned: Assignment = field(default_factory=dict)

    async def subscribe(self, agent: Coordinating, regex: str) -> None:
        answer = await agent.consume(
            GROUP,
            0,
            member_id=self.name,
            subscribed_topics=None,
            subscribed_regex=regex,
            may_see=self.may_see,
        )
        self._hear(answer)

    async def beat(self, agent: Coordinating) -> bool:
        """Returns whether its assignment changed."""
        answer = await agent.consume(
            GROUP, self.epoch, member_id=self.name, owned=self.assigned, may_see=self.may_see
        )
        before = self.assigned
        self._hear(answer)
        return self.assigned != before

    async def until_it_has(self, agent: Coordinating, *topics: TopicId) -> None:
        async def it_has() -> bool:
            await self.beat(agent)
            return self.assigned.keys() == set(topics)

        await until_answered(it_has)

    def _hear(self, answer: ConsumerHeartbeatAnswer | GroupFault) -> None:
        assert isinstance(answer, ConsumerHeartbeatAnswer), answer
        assert answer.fault is None, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = answer.assignment


async def topics(sequencer: Sequencer, *names: str) -> list[TopicId]:
    return [(await sequencer.topics.create(name, 1, {})).topic_id for name in names]


async def test_after_a_fail_over_a_regular_expression_keeps_its_topics_and_gets_no_others(
    sequencer: Sequencer,
) -> None:
    open_id, secret_id = await topics(sequencer, "re-open", "re-secret")
    erin = Member("erin", only("re-open", "re-more"))
    async with coordinating(sequencer, lambda: ACLS) as first:
        await erin.subscribe(first, "re-.*")
        await erin.until_it_has(first, open_id)
        epoch = erin.epoch

    async with coordinating(sequencer, lambda: ACLS) as second:
        running = await second.loaded(GROUP)
        await until_answered(lambda: _is(running.seen is not None))
        assert (running.machine.generation, secret_id in erin.assigned) == (epoch, False)
        for _ in range(5):
            assert not await erin.beat(second)
        assert (erin.epoch, running.machine.generation) == (epoch, epoch)
        [more_id, _] = await topics(sequencer, "re-more", "re-secret-too")
        await erin.until_it_has(second, open_id, more_id)


async def test_after_a_fail_over_a_member_without_a_regular_expression_lends_no_rights(
    sequencer: Sequencer,
) -> None:
    [open_id, _] = await topics(sequencer, "re-open", "re-secret")
    erin = Member("erin", only("re-open"))
    async with coordinating(sequencer, lambda: ACLS) as first:
        await erin.subscribe(first, "re-.*")
        await erin.until_it_has(first, open_id)

    async with coordinating(sequencer, lambda: ACLS) as second:
        answer = await second.consume(GROUP, 0, member_id="root", subscribed_topics=("none",), may_see=None)
        assert isinstance(answer, ConsumerHeartbeatAnswer)
        assert answer.fault is None
        for _ in range(5):
            await erin.beat(second)
            assert erin.assigned.keys() == {open_id}


async def test_after_a_fail_over_a_streams_group_creates_nothing_until_a_member_brings_its_rights(
    sequencer: Sequencer,
) -> None:
    await topics(sequencer, "lines")
    async with coordinating(sequencer, lambda: ACLS) as first:
        joined = await first.stream("words", 0, may_create=only())
        assert isinstance(joined, StreamsHeartbeatAnswer)

    async with coordinating(sequencer, lambda: ACLS) as second:
        running = await second.loaded("words")
        await until_answered(lambda: _is(running.seen is not None))
        await second.stream("words", 99, may_create=None)  # refused
        assert not await sequencer.topics.by_name(["words", "counts"])
        told = await second.stream("words", joined.member_epoch, may_create=only("words", "counts"))
        assert isinstance(told, StreamsHeartbeatAnswer)
        assert told.fault is None
        assert (await sequencer.topics.by_name(["words", "counts"])).keys() == {"words", "counts"}


async def test_a_refused_heartbeat_does_not_change_what_the_group_sees(sequencer: Sequencer) -> None:
    [open_id, _] = await topics(sequencer, "re-open", "re-secret")
    erin = Member("erin", everything_but("re-secret"))
    async with coordinating(sequencer, lambda: ACLS) as agent:
        await erin.subscribe(agent, "re-.*")
        await erin.until_it_has(agent, open_id)

        refused = await agent.consume(GROUP, 77, member_id="bob", subscribed_regex="x.*", may_see=only())
        assert isinstance(refused, ConsumerHeartbeatAnswer)
        assert refused.fault is GroupFault.UNKNOWN_MEMBER
        [more_id] = await topics(sequencer, "re-more")

        await erin.until_it_has(agent, open_id, more_id)


async def test_a_changed_acl_takes_topics_from_a_regular_expression_and_gives_them(
    sequencer: Sequencer,
) -> None:
    first_id, second_id = await topics(sequencer, "re-first", "re-second")
    acls, seen = [object()], {"re-first", "re-second"}
    erin = Member("erin", lambda name: name in seen)
    async with coordinating(sequencer, lambda: acls[0]) as agent:
        await erin.subscribe(agent, "re-.*")
        await erin.until_it_has(agent, first_id, second_id)

        seen.discard("re-second")
        acls[0] = object()
        await erin.until_it_has(agent, first_id)

        seen.add("re-second")
        acls[0] = object()
        await erin.until_it_has(agent, first_id, second_id)


async def test_a_new_regular_expression_does_not_use_the_rights_of_a_member_that_is_gone(
    sequencer: Sequencer,
) -> None:
    open_id, secret_id = await topics(sequencer, "re-open", "re-secret")
    root, erin = Member("root", None), Member("erin", only("re-open"))
    async with coordinating(sequencer, lambda: ACLS) as agent:
        await root.subscribe(agent, "re-.*")
        await root.until_it_has(agent, open_id, secret_id)
        await agent.consume(GROUP, -1, member_id="root")

        await erin.subscribe(agent, "re-.*")

        assert secret_id not in erin.assigned
        await erin.until_it_has(agent, open_id)


async def test_others_get_their_turn_while_many_topics_are_judged(sequencer: Sequencer) -> None:
    erin = Member("erin", only("re-open"))
    shape = TopicShape(topic_id=(await topics(sequencer, "re-open"))[0], partition_count=1)
    async with coordinating(sequencer, lambda: ACLS) as agent:
        await erin.subscribe(agent, "re-.*")
        await erin.until_it_has(agent, shape.topic_id)
        running = await agent.loaded(GROUP)
        rounds = 0

        async def other() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        many = {f"topic-{number}": shape for number in range(100_000)}
        seen = await running._visible(TopicsSeen(topics=many, asked=TopicsWanted(everything=True)))
        task.cancel()

        assert (len(seen.hidden), rounds > 1) == (100_000, True)


async def _is(holds: bool) -> bool:
    return holds
