"""Groups under random events: consumers of both protocols come, leave, die, restart and change their
subscriptions. Topics are created, grow and are deleted. Answers are lost, and coordinators die at any moment.

These never happen: two consumers hold one partition, an epoch goes down, a request is answered twice. Once
all consumers have been heard again for a while, every consumer is a member, every partition of a subscribed
topic is held, and heartbeats write nothing.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)

from agent.groups.events import GroupState
from tests.agent.groups.simulation import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicConsumer,
    Consumer,
    NewConsumer,
    World,
)

NAMES = ["apples", "pears", "plums"]
REGEXES = ["p.*", ".*s", "none"]
MOST_CONSUMERS = 6
SETTLES_IN_MS = 2 * (SESSION_MS + REBALANCE_MS) + 20_000

subscriptions = st.sets(st.sampled_from(NAMES), min_size=1).map(frozenset)


class GroupMachine(RuleBasedStateMachine):
    consumers = Bundle("consumers")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.made = 0
        self.cooperative = False

    @initialize(
        target=consumers,
        cooperative=st.booleans(),
        classic=st.lists(st.booleans(), min_size=2, max_size=4),
        settled=st.booleans(),
    )
    def begin(self, cooperative: bool, classic: list[bool], settled: bool) -> Consumer:
        self.cooperative = cooperative
        self.world.make_topic("apples", 3)
        self.world.make_topic("pears", 2)
        topics = frozenset({"apples", "pears"})
        come = [
            self.classic_consumer(topics, None) if is_classic else self.new_consumer(topics, None, None)
            for is_classic in classic
        ]
        if settled:
            self.all_act_for_a_while()
        return multiple(*come)  # type: ignore[return-value]

    # --- consumers

    def alive(self) -> list[Consumer]:
        return [consumer for consumer in self.world.consumers if consumer.alive]

    def add(self, consumer: Consumer) -> Consumer:
        self.world.consumers.append(consumer)
        consumer.act()
        return consumer

    def name(self) -> str:
        self.made += 1
        return f"c{self.made}"

    def free_instance(self, wanted: str | None) -> str | None:
        used = {consumer.instance_id for consumer in self.alive()}
        return None if wanted in used else wanted

    def new_consumer(self, topics: frozenset[str], regex: str | None, instance: str | None) -> Consumer:
        name = self.name()
        return self.add(
            NewConsumer(
                name=name,
                world=self.world,
                member_id=name,
                topics=frozenset() if regex else topics,
                regex=regex,
                instance_id=self.free_instance(instance),
            )
        )

    def classic_consumer(self, topics: frozenset[str], instance: str | None) -> Consumer:
        return self.add(
            ClassicConsumer(
                name=self.name(),
                world=self.world,
                topics=topics,
                cooperative=self.cooperative,
                instance_id=self.free_instance(instance),
            )
        )

    @precondition(lambda self: len(self.alive()) < MOST_CONSUMERS)
    @rule(
        target=consumers,
        topics=subscriptions,
        regex=st.sampled_from([None, None, *REGEXES]),
        instance=st.sampled_from([None, "i1", "i2"]),
    )
    def new_consumer_comes(self, topics: frozenset[str], regex: str | None, instance: str | None) -> Consumer:
        return self.new_consumer(topics, regex, instance)

    @precondition(lambda self: len(self.alive()) < MOST_CONSUMERS)
    @rule(target=consumers, topics=subscriptions, instance=st.sampled_from([None, "i1", "i2"]))
    def classic_consumer_comes(self, topics: frozenset[str], instance: str | None) -> Consumer:
        return self.classic_consumer(topics, instance)

    @rule(
        steps=st.lists(st.tuples(st.integers(0, MOST_CONSUMERS - 1), st.booleans()), min_size=3, max_size=12)
    )
    def some_act(self, steps: list[tuple[int, bool]]) -> None:
        """Consumers send their next requests, in any order. Those of the new protocol follow their
        assignment, or do so later.
        """
        for number, reconciles in steps:
            alive = self.alive()
            if number < len(alive):
                consumer = alive[number]
                consumer.act()
                if reconciles and isinstance(consumer, NewConsumer):
                    consumer.reconcile()

    @rule(consumer=consumers)
    def next_answer_is_lost(self, consumer: Consumer) -> None:
        if consumer.alive:
            self.world.loses.add(consumer.name)

    @rule(consumer=consumers, topics=subscriptions, regex=st.sampled_from([None, *REGEXES]))
    def consumer_resubscribes(self, consumer: Consumer, topics: frozenset[str], regex: str | None) -> None:
        if isinstance(consumer, NewConsumer):
            consumer.resubscribe(frozenset() if regex else topics, regex)
        elif isinstance(consumer, ClassicConsumer):
            consumer.resubscribe(topics)

    @rule(consumer=consumes(consumers))
    def consumer_dies(self, consumer: Consumer) -> None:
        consumer.alive = False

    @rule(consumer=consumes(consumers), for_a_while=st.booleans())
    def consumer_leaves(self, consumer: Consumer, for_a_while: bool) -> None:
        if consumer.waits or not consumer.alive:
            consumer.alive = False
        elif isinstance(consumer, NewConsumer):
            consumer.leave(for_a_while=for_a_while)
        elif isinstance(consumer, ClassicConsumer):
            consumer.leave()

    @rule(target=consumers, consumer=consumes(consumers), classic=st.booleans(), leaves=st.booleans())
    def static_consumer_restarts(self, consumer: Consumer, classic: bool, leaves: bool) -> Consumer:
        """A restart may change the protocol. A killed member of the new protocol must wait until its session
        is over.
        """
        if not consumer.alive or consumer.instance_id is None:
            return multiple(consumer)  # type: ignore[return-value]
        if leaves and not consumer.waits and isinstance(consumer, NewConsumer):
            consumer.leave(for_a_while=True)
        consumer.alive = False
        topics = consumer.topics or frozenset(NAMES[:1])
        if classic:
            return self.classic_consumer(topics, consumer.instance_id)
        return self.new_consumer(topics, None, consumer.instance_id)

    # --- what is around them

    @rule(ms=st.integers(1, SESSION_MS + 1_000))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(self.world.now_ms + ms)

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 4))
    def topics_change(self, name: str, partitions: int) -> None:
        if name not in self.world.topics:
            self.world.make_topic(name, partitions)
        elif partitions == 1:
            del self.world.topics[name]
        else:
            self.world.grow_topic(name, partitions - 1)
        self.world.show_topics()

    @rule(when=st.sampled_from(["before", "after"]))
    def coordinator_is_about_to_die(self, when: str) -> None:
        self.world.dies = when

    # --- what must come of it

    @rule()
    def all_act_for_a_while(self) -> None:
        self.world.dies = None
        self.world.loses.clear()
        end_ms = self.world.now_ms + SETTLES_IN_MS
        writes = -1
        while (unsettled := self.unsettled()) or self.world.writes != writes:
            assert self.world.now_ms < end_ms, unsettled
            writes = self.world.writes
            self.round()

    def unsettled(self) -> list[str]:
        """Returns what is not settled yet."""
        group = self.world.group
        members = {member.member_id for member in group.describe().members}
        waiting = [] if group.state in (GroupState.STABLE, GroupState.EMPTY) else [group.state.value]
        missing = sorted(members.symmetric_difference(consumer.member_id for consumer in self.alive()))
        return waiting + missing + self.world.unowned()

    def round(self) -> None:
        for consumer in self.alive():
            for _ in range(3):
                consumer.act()
            if isinstance(consumer, NewConsumer):
                consumer.reconcile()
        self.world.pass_time(self.world.now_ms + 1_000)

    def teardown(self) -> None:
        self.all_act_for_a_while()


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
