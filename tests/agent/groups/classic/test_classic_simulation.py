"""Random lives of classic groups, in virtual time. Members join, sync, leave, die, restart, run twice, change
their subscriptions and lose connections. Coordinators die, and others take over from what was written.
"""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from agent.groups.classic.classic import ClassicGroup
from agent.groups.events import (
    Answered,
    GroupFault,
    GroupState,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    LeavingMember,
    OfferedProtocol,
    SyncAnswer,
    Token,
)
from agent.groups.settings import GroupSettings
from sequencer.groups.stored_groups import StoredGroup
from tests.agent.groups.classic.classic_clients import PARTITIONS, Phase, SimulatedClient
from tests.agent.groups.transcript import written

SESSIONS_MS = (6_000, 10_000)
REBALANCES_MS = (4_000, 20_000)
INITIAL_DELAY_MS = 3_000
LONGEST_WAIT_MS = max(REBALANCES_MS)
CALM_MS = 2 * max(SESSIONS_MS) + 3 * max(REBALANCES_MS)
"""Within this time, if every client behaves, a group is Stable: sessions of dead members and unused ids end,
one rebalance that waited for them ends, and the next one waits for no member.
"""


class ClassicGroupLife(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.settings = GroupSettings(group_initial_rebalance_delay_ms=INITIAL_DELAY_MS, group_max_size=100)
        self.ids = count(1)
        self.tokens = count(1)
        self.names = count(1)
        self.stored: StoredGroup | None = None
        self.group = self.load()
        self.everybody: list[SimulatedClient] = []
        self.asked: dict[Token, SimulatedClient] = {}
        self.highest_generation = 0
        self.owners: dict[tuple[int, int], str] = {}

    def load(self) -> ClassicGroup:
        return ClassicGroup(self.settings, lambda: str(next(self.ids)), self.stored, self.now_ms)

    # --- the coordinator: changes are written before answers go out

    def deliver(self, answers: list[Answered]) -> None:
        change = self.group.take_changes()
        if change is not None:
            assert change.generation >= (self.stored.generation if self.stored else 0)
            self.stored = written("g", self.stored, change)
            assert change.is_empty == self.group.is_empty
        for answered in answers:
            # A second answer, or one to a forgotten request, fails here.
            client = self.asked.pop(answered.token)
            if isinstance(answered.answer, LeaveAnswer):
                continue
            client.hear(answered.answer)
            self.check(client, answered.answer)

    def check(self, client: SimulatedClient, answer: object) -> None:
        if isinstance(answer, JoinAnswer) and answer.fault is None:
            assert answer.generation >= self.highest_generation
            self.highest_generation = answer.generation
            assert (answer.members != ()) >= (answer.leader == answer.member_id)
        if isinstance(answer, SyncAnswer) and answer.fault is None:
            for partition in client.partitions:
                owner = self.owners.setdefault((client.generation, partition), client.identity)
                assert owner == client.identity, (
                    f"{partition} has two owners in generation {client.generation}"
                )

    def send(self, client: SimulatedClient) -> None:
        token = Token(next(self.tokens))
        request = client.next_request(token)
        self.asked[token] = client
        client.waits_since_ms = self.now_ms
        self.deliver(self.group.handle(request, self.now_ms))

    def pass_time(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= until_ms:
            assert due_ms >= self.now_ms - LONGEST_WAIT_MS
            self.now_ms = max(self.now_ms, due_ms)
            answers = self.group.tick(self.now_ms)
            for answered in answers:  # a member that waits is not silent, so time alone does not remove it
                assert getattr(answered.answer, "fault", None) is not GroupFault.UNKNOWN_MEMBER
            self.deliver(answers)
            self.no_request_waits_too_long()
        self.now_ms = until_ms

    # --- what happens

    @initialize(
        target=clients, instances=st.lists(st.sampled_from([None, "box", "hut"]), min_size=2, max_size=4)
    )
    def some_begin(self, instances: list[str | None]) -> object:
        begun = [self.begin(instance, True, 10_000, 20_000, ("range",)) for instance in instances]
        self.all_go_on(0)
        return multiple(*begun)

    @rule(
        target=clients,
        instance=st.sampled_from([None, "box", "hut"]),
        asks_for_id=st.booleans(),
        session_ms=st.sampled_from(SESSIONS_MS),
        rebalance_ms=st.sampled_from(REBALANCES_MS),
        assignors=st.sampled_from([("range",), ("sticky", "range"), ("range", "sticky")]),
    )
    def begins(
        self,
        instance: str | None,
        asks_for_id: bool,
        session_ms: int,
        rebalance_ms: int,
        assignors: tuple[str, ...],
    ) -> SimulatedClient:
        """Starts a process, possibly with an instance id that another has: its twin or its restart."""
        return self.begin(instance, asks_for_id, session_ms, rebalance_ms, assignors)

    def begin(
        self,
        instance: str | None,
        asks_for_id: bool,
        session_ms: int,
        rebalance_ms: int,
        assignors: tuple[str, ...],
    ) -> SimulatedClient:
        client = replace(
            self.a_client(),
            instance_id=instance,
            asks_for_id=asks_for_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            assignors=assignors,
        )
        self.everybody.append(client)
        self.send(client)
        return client

    def a_client(self) -> SimulatedClient:
        return SimulatedClient(
            name=f"c{next(self.names)}",
            instance_id=None,
            asks_for_id=False,
            session_timeout_ms=SESSIONS_MS[0],
            rebalance_timeout_ms=REBALANCES_MS[0],
        )

    @rule(client=clients)
    def goes_on(self, client: SimulatedClient) -> None:
        """Sends its next request, or another one of the same kind if it waits already."""
        if client.is_live:
            self.send(client)

    @rule(
        idle=clients,
        until=st.sampled_from([Phase.OUTSIDE, Phase.JOINED]),
        heartbeats=st.booleans(),
        rounds=st.sampled_from([4, 20]),
        one_is_removed=st.booleans(),
    )
    def all_continue_but_one(
        self, idle: SimulatedClient, until: Phase, heartbeats: bool, rounds: int, one_is_removed: bool
    ) -> None:
        """One member stops at this phase, and perhaps shows that it lives. The others come to wait for it, or
        continue without it.
        """
        for _ in range(rounds):
            self.all_go_on(INITIAL_DELAY_MS // 2, idle if idle.phase is until else None)
            if idle.phase is until and idle.is_live and heartbeats:
                self.show_life(idle)
        if one_is_removed:
            self.a_waiting_member_is_removed(0, by_instance=False)

    def all_go_on(self, pause_ms: int, idle: SimulatedClient | None = None) -> None:
        self.pass_time(pause_ms)
        for client in self.everybody:
            if client.is_live and client.waits_since_ms is None and client is not idle:
                self.send(client)

    def show_life(self, client: SimulatedClient) -> None:
        token = Token(next(self.tokens))
        self.asked[token] = self.a_client()
        self.deliver(self.group.handle(client.heartbeat(token), self.now_ms))

    @rule(client=clients)
    def rejoins(self, client: SimulatedClient) -> None:
        if client.is_live and client.member_id:
            client.phase = Phase.OUTSIDE
            self.send(client)

    @rule(client=clients, topics=st.sampled_from(["orders", "orders+clicks"]))
    def wants_other_topics(self, client: SimulatedClient, topics: str) -> None:
        if client.is_live:
            client.topics = topics
            client.phase = Phase.OUTSIDE
            self.send(client)

    @rule(client=consumes(clients))
    def leaves(self, client: SimulatedClient) -> None:
        if client.is_live and client.member_id:
            token = Token(next(self.tokens))
            self.asked[token] = client
            leaving = LeavingMember(member_id=client.member_id, instance_id=client.instance_id)
            self.deliver(self.group.handle(Leave(token=token, members=(leaving,)), self.now_ms))
        self.vanish(client)

    @rule(position=st.integers(min_value=0, max_value=3), by_instance=st.booleans())
    def a_waiting_member_is_removed(self, position: int, by_instance: bool) -> None:
        waits = [client for client in self.everybody if client.waits_since_ms is not None]
        if waits:
            self.is_removed_by_an_administrator(waits[position % len(waits)], by_instance)

    @rule(client=clients, by_instance=st.booleans())
    def is_removed_by_an_administrator(self, client: SimulatedClient, by_instance: bool) -> None:
        administrator = self.a_client()
        token = Token(next(self.tokens))
        self.asked[token] = administrator
        leaving = LeavingMember(
            member_id="" if by_instance else client.member_id,
            instance_id=client.instance_id if by_instance else None,
        )
        self.deliver(self.group.handle(Leave(token=token, members=(leaving,)), self.now_ms))

    @rule(client=consumes(clients))
    def dies(self, client: SimulatedClient) -> None:
        self.vanish(client)

    def vanish(self, client: SimulatedClient) -> None:
        self.hang_up(client)
        client.phase = Phase.OVER

    @rule(client=clients)
    def loses_its_connection(self, client: SimulatedClient) -> None:
        self.hang_up(client)

    def hang_up(self, client: SimulatedClient) -> None:
        for token in [token for token, asking in self.asked.items() if asking is client]:
            del self.asked[token]
            self.group.forget(token)
        client.waits_since_ms = None

    @rule()
    def a_stranger_comes(self) -> None:
        """Whatever the answer is, the group does not change."""
        join = self.a_client().join(Token(next(self.tokens)))
        before = self.group.describe()
        for member_id, protocols, expected in (
            ("", (OfferedProtocol(name="other", metadata=b""),), GroupFault.INCONSISTENT_PROTOCOL),
            ("stranger-0", join.protocols, GroupFault.UNKNOWN_MEMBER),
        ):
            if self.group.is_empty and not member_id:
                continue  # it would be the first
            stranger = replace(join, member_id=member_id, protocols=protocols, token=Token(next(self.tokens)))
            [answered] = self.group.handle(stranger, self.now_ms)
            assert answered.answer == JoinAnswer(fault=expected, member_id=member_id)
        assert self.group.take_changes() is None
        assert self.group.describe() == before

    @rule(duration_ms=st.sampled_from([1, 500, 3_000, 7_000, 25_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.pass_time(duration_ms)

    @rule(seconds=st.sampled_from([3, 25]))
    def all_send_heartbeats_and_nothing_else(self, seconds: int) -> None:
        """They are alive, but neither join nor sync. What waits for them goes on without them."""
        for _ in range(seconds):
            self.pass_time(1_000)
            for client in self.everybody:
                if client.is_live and client.waits_since_ms is None and client.generation >= 0:
                    self.show_life(client)

    @rule()
    def another_coordinator_takes_over(self) -> None:
        for client in self.asked.values():
            if client.is_live:
                client.phase = Phase.OUTSIDE
            client.waits_since_ms = None
        self.asked.clear()
        before = self.group
        self.group = self.load()
        self.deliver([])
        assert self.group.generation == before.generation
        assert self.group.members.keys() >= {
            member_id for member_id in before.members if before.state is GroupState.STABLE
        }

    @rule()
    def every_client_behaves(self) -> None:
        calm_at_ms = self.now_ms + CALM_MS
        while not self.is_calm():
            assert self.now_ms < calm_at_ms, "the group does not settle"
            self.all_go_on(500)

    def is_calm(self) -> bool:
        live = [client for client in self.everybody if client.is_live]
        if not live:
            return self.group.state is GroupState.EMPTY
        owned = sorted(partition for client in live for partition in client.partitions)
        return (
            self.group.state is GroupState.STABLE
            and all(
                client.phase is Phase.MEMBER and client.generation == self.group.generation for client in live
            )
            and self.group.members.keys() == {client.member_id for client in live}
            and owned == list(PARTITIONS)
        )

    # --- what always holds

    @invariant()
    def no_request_waits_too_long(self) -> None:
        for client in self.asked.values():
            if client.waits_since_ms is not None:
                assert self.now_ms - client.waits_since_ms <= LONGEST_WAIT_MS

    @invariant()
    def the_written_state_is_the_present_state(self) -> None:
        if self.stored is not None:
            assert self.stored.generation == self.group.generation
            assert self.group.stored_member_ids == self.stored.members.keys()
            if self.group.state is GroupState.STABLE:
                assert self.stored.members.keys() == self.group.members.keys()

    @invariant()
    def a_rebalance_has_an_end(self) -> None:
        if self.group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            assert self.group.next_deadline_ms() is not None

    @invariant()
    def waiting_members_share_one_rebalance(self) -> None:
        waits = [client for client in self.asked.values() if client.waits_since_ms is not None]
        assert not waits or self.group.state in (
            GroupState.PREPARING_REBALANCE,
            GroupState.COMPLETING_REBALANCE,
        )

    def teardown(self) -> None:
        self.every_client_behaves()


@pytest.mark.timeout(60)
def test_no_two_owners_no_lost_member_no_stuck_rebalance() -> None:
    run_state_machine_as_test(
        ClassicGroupLife,
        settings=settings(
            max_examples=200,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            print_blob=True,
        ),
    )
