"""Suspects: what makes an agent consider a peer dead, and what takes it back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_ring.ring.suspects import Evidence, PeerName, Suspects
from cache_ring.settings import CacheRingSettings
from storage.identifiers import NodeId

POLICY = CacheRingSettings(
    membership_lease_s=10.0,
    probe_every_s=0.4,
    probe_patience_s=1.2,
    probe_most_patience_s=5.0,
    probe_report_s=2.0,
    probe_watched=10,
)
STEP_S = 0.1


def node(number: int, incarnation: int = 1) -> PeerName:
    return NodeId(number), incarnation


@dataclass(kw_only=True)
class Scene:
    """Node 1 and its peers, on a clock of steps. `dead` refuse connections, `mute` leave probes
    unanswered.
    """

    peers: int
    dead: set[int] = field(default_factory=set)
    mute: set[int] = field(default_factory=set)
    cut_off_leases: set[int] = field(default_factory=set)
    """Peers that the lease's view does not have any more."""
    now_s: float = 0.0
    looked_every_s: float = 2.0

    def __post_init__(self) -> None:
        self.suspects = Suspects(POLICY)
        self._look()
        self.pass_time(11.0)

    @property
    def suspected(self) -> Mapping[int, Evidence]:
        return {name[0]: evidence for name, evidence in self.suspects.suspected.items()}

    def pass_time(self, duration_s: float) -> None:
        for _ in range(round(duration_s / STEP_S)):
            self.now_s += STEP_S
            if round(self.now_s / STEP_S) % round(self.looked_every_s / STEP_S) == 0:
                self._look()
            self._probe()
            self.suspects.tick(self.now_s)

    def pause_of_this_agent(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.suspects.tick(self.now_s)

    def report(self, number: int, by: int) -> bool:
        news = self.suspects.reported(node(number), NodeId(by), self.now_s)
        self.suspects.tick(self.now_s)
        return news

    def _look(self) -> None:
        there = [node(number) for number in range(1, self.peers + 2) if number not in self.cut_off_leases]
        self.suspects.looked(node(1), there, self.now_s)

    def _probe(self) -> None:
        for name in self.suspects.to_probe(self.now_s):
            self.suspects.asked(name, self.now_s)
            if name[0] in self.dead:
                self.suspects.refused(name, self.now_s)
            elif name[0] not in self.mute:
                self.suspects.answered(name, self.now_s)


def test_a_peer_whose_address_refuses_is_suspected_at_once() -> None:
    scene = Scene(peers=2)

    scene.suspects.refused(node(2), scene.now_s)
    scene.suspects.tick(scene.now_s)

    assert scene.suspected == {2: Evidence.REFUSED}
    assert scene.suspects.take_news() == [node(2)]


def test_a_silent_peer_is_suspected_when_its_patience_is_over() -> None:
    scene = Scene(peers=2)
    scene.mute = {2}

    scene.pass_time(1.1)
    early = scene.suspected
    scene.pass_time(0.4)

    assert (early, scene.suspected) == ({}, {2: Evidence.SILENT})


def test_a_suspect_that_answers_is_taken_back_at_once() -> None:
    scene = Scene(peers=2)
    scene.dead = {2}
    scene.mute = {3}
    scene.pass_time(2.0)
    assert scene.suspected.keys() >= {2}

    scene.dead, scene.mute = set(), set()
    scene.pass_time(STEP_S)

    assert scene.suspected == {}


def test_each_time_a_peer_proves_slow_the_patience_doubles_up_to_its_bound() -> None:
    scene = Scene(peers=3)
    waits = []
    for _ in range(4):
        scene.mute, began_s = {2}, scene.now_s
        while 2 not in scene.suspected:
            scene.pass_time(STEP_S)
        waits.append(scene.now_s - began_s)
        scene.mute = set()
        scene.pass_time(STEP_S)

    assert waits == pytest.approx([1.3, 2.5, 4.9, 5.1], abs=0.21)


def test_a_peer_that_has_just_started_may_be_slow() -> None:
    scene = Scene(peers=3)
    started = node(2, incarnation=2)
    scene.suspects.looked(node(1), [node(1), started, node(3), node(4)], scene.now_s)
    scene.suspects.answered(started, scene.now_s)
    scene.suspects.asked(started, scene.now_s)
    began_s = scene.now_s

    while not scene.suspected:
        scene.now_s += STEP_S
        scene.suspects.tick(scene.now_s)

    assert scene.now_s - began_s == pytest.approx(5.1, abs=0.11)


def test_a_peer_that_was_frozen_is_suspected_as_soon_the_next_time() -> None:
    scene = Scene(peers=3)
    for _ in range(3):
        scene.mute = {2}
        scene.pass_time(1.5)
        assert scene.suspected == {2: Evidence.SILENT}
        scene.pass_time(2.0)
        scene.mute = set()
        scene.pass_time(1.0)


def test_a_minute_of_answers_ends_the_longer_patience() -> None:
    scene = Scene(peers=3)
    scene.mute = {2}
    scene.pass_time(2.0)
    scene.mute = set()
    scene.pass_time(61.0)

    scene.mute = {2}
    scene.pass_time(1.5)

    assert scene.suspected == {2: Evidence.SILENT}


def test_an_agent_that_finds_most_of_its_peers_silent_doubts_itself() -> None:
    scene = Scene(peers=4)
    scene.mute = {2, 3, 4, 5}

    scene.pass_time(3.0)

    assert scene.suspected == {}


def test_a_refused_peer_is_suspected_though_others_are_silent_too() -> None:
    scene = Scene(peers=4)
    scene.mute, scene.dead = {3, 4, 5}, {2}

    scene.pass_time(3.0)

    assert scene.suspected == {2: Evidence.REFUSED}


def test_of_two_agents_one_may_find_the_other_silent() -> None:
    scene = Scene(peers=1)
    scene.mute = {2}

    scene.pass_time(2.0)

    assert scene.suspected == {2: Evidence.SILENT}


def test_a_peer_that_never_answered_is_not_suspected_for_its_silence() -> None:
    scene = Scene(peers=3, mute={2})

    scene.pass_time(10.0)

    assert scene.suspected == {}


def test_an_agent_that_stood_still_suspects_no_one_for_that_time() -> None:
    scene = Scene(peers=2)
    for name in scene.suspects.watched:
        scene.suspects.asked(name, scene.now_s)

    scene.pause_of_this_agent(30.0)

    assert scene.suspected == {}


def test_a_peer_that_hangs_up_is_alive() -> None:
    scene = Scene(peers=2)
    scene.suspects.asked(node(2), scene.now_s)
    scene.suspects.hung_up(node(2))

    scene.mute = {2}
    scene.pass_time(1.0)

    assert scene.suspected == {}


def test_reports_only_make_this_agent_probe() -> None:
    scene = Scene(peers=100)
    stranger = _unwatched(scene)
    assert node(stranger) not in scene.suspects.to_probe(scene.now_s)

    news = scene.report(stranger, by=90)
    for by in range(1, 100):  # as many as a stranger invents
        scene.report(stranger, by=by)

    assert (news, scene.suspected) == (True, {})
    assert node(stranger) in scene.suspects.to_probe(scene.now_s + 0.3)


def test_a_reported_peer_is_probed_for_a_while_only() -> None:
    scene = Scene(peers=100)
    stranger = _unwatched(scene)
    scene.report(stranger, by=90)

    # Nothing is probed, as if this agent's own connections were full.
    for _ in range(25):
        scene.now_s += STEP_S
        scene.suspects.tick(scene.now_s)

    assert node(stranger) not in scene.suspects.to_probe(scene.now_s)
    assert scene.suspected == {}


def test_a_reported_peer_that_is_silent_here_too_stays_a_suspect() -> None:
    scene = Scene(peers=100)
    stranger = _unwatched(scene)
    scene.mute = {stranger}
    scene.report(stranger, by=90)
    scene.report(stranger, by=91)

    scene.pass_time(5.0)

    assert scene.suspected == {stranger: Evidence.SILENT}


def test_reports_of_a_peer_that_answered_are_ignored_for_a_while() -> None:
    scene = Scene(peers=100)
    stranger = _unwatched(scene)
    scene.report(stranger, by=90)
    scene.pass_time(0.3)

    assert not scene.report(stranger, by=91)
    assert not scene.report(stranger, by=92)
    assert scene.suspected == {}


def test_a_report_is_news_once_and_few_are_passed_on() -> None:
    scene = Scene(peers=100)
    stranger = _unwatched(scene)

    news = [scene.report(stranger, by=by) for by in (90, 90, 91, 92, 93, 94)]

    assert news == [True, False, True, True, False, False]


def test_few_of_many_reported_peers_are_probed_at_a_time_and_each_has_its_turn() -> None:
    suspects = Suspects(POLICY.model_copy(update={"probe_reported": 8}))
    suspects.looked(node(1), [node(number) for number in range(1, 201)], 0.0)
    reported = {node(number) for number in range(2, 201)} - suspects.watched
    for name in reported:
        assert suspects.reported(name, NodeId(900), 0.0)

    probed: set[PeerName] = set()
    while turn := suspects.to_probe(1.0) - suspects.watched:
        assert len(turn) <= 8
        assert not turn & probed
        for name in turn:
            suspects.asked(name, 1.0)
            suspects.answered(name, 1.0)
        probed |= turn

    assert probed == reported


def test_reports_about_this_agent_or_by_the_suspect_are_no_news() -> None:
    scene = Scene(peers=3)

    assert not scene.report(1, by=2)
    assert not scene.report(2, by=2)
    assert not scene.report(77, by=2)


def test_a_suspect_that_renews_its_lease_is_taken_back_after_one_lease() -> None:
    """Its machine is there and reaches Postgres. Only the path from here is broken."""
    scene = Scene(peers=3)
    scene.mute = {2}
    scene.pass_time(2.0)
    assert scene.suspected == {2: Evidence.SILENT}

    scene.pass_time(13.0)
    after_a_lease = scene.suspected
    scene.pass_time(60.0)
    later = scene.suspected
    scene.mute = set()
    scene.pass_time(11.0)
    scene.mute = {2}
    scene.pass_time(6.0)

    assert (after_a_lease, later, scene.suspected) == ({}, {}, {2: Evidence.SILENT})


def test_a_suspect_stays_one_while_postgres_is_away() -> None:
    """Its lease cannot be read, so it proves nothing."""
    scene = Scene(peers=3, looked_every_s=10_000.0)
    scene.dead = {2}

    scene.pass_time(60.0)

    assert scene.suspected == {2: Evidence.REFUSED}


def test_a_new_incarnation_is_no_suspect() -> None:
    scene = Scene(peers=2)
    scene.suspects.refused(node(2), scene.now_s)

    scene.suspects.looked(node(1), [node(1), node(2, incarnation=2), node(3)], scene.now_s)
    scene.suspects.tick(scene.now_s)

    assert scene.suspected == {}


def test_a_suspect_whose_lease_has_ended_is_forgotten() -> None:
    scene = Scene(peers=2)
    scene.dead = {2}
    scene.pass_time(1.0)
    scene.cut_off_leases = {2}

    scene.pass_time(2.0)

    assert scene.suspected == {}
    assert node(2) not in scene.suspects.to_probe(scene.now_s)


@given(st.integers(min_value=1, max_value=300), st.integers(min_value=1, max_value=12))
@settings(max_examples=60, deadline=None)
def test_every_agent_is_watched_by_as_many_as_it_watches(agents: int, most: int) -> None:
    policy = POLICY.model_copy(update={"probe_watched": most})
    names = [node(number) for number in range(1, agents + 1)]
    watched = {name: _watched_by(policy, name, names) for name in names}
    watchers = [sum(name in of for of in watched.values()) for name in names]

    assert all(name not in watched[name] for name in names)
    assert set(watchers) == {len(of) for of in watched.values()} == {min(most, (agents - 1).bit_length())}


def test_a_report_reaches_three_hundred_agents_in_nine_hops() -> None:
    names = [node(number) for number in range(1, 301)]
    watched = {name: _watched_by(POLICY, name, names) for name in names}
    neighbours = {name: set(of) for name, of in watched.items()}
    for name, of in watched.items():
        for other in of:
            neighbours[other].add(name)

    reached, hops = {names[0]}, 0
    while len(reached) < len(names):
        reached |= {other for name in reached for other in neighbours[name]}
        hops += 1

    assert hops <= 9
    assert max(map(len, neighbours.values())) <= 18


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    does: str
    number: int
    by: int


_steps = st.lists(
    st.builds(
        _Step,
        does=st.sampled_from(("asked", "answered", "refused", "hung up", "reported", "wait")),
        number=st.integers(1, 7),
        by=st.integers(1, 7),
    ),
    max_size=60,
)


@given(_steps)
@settings(max_examples=300, deadline=None)
def test_a_peer_that_answers_is_never_a_suspect_and_no_agent_suspects_itself(
    steps: Iterable[_Step],
) -> None:
    suspects, now_s = Suspects(POLICY), 0.0
    names = [node(number) for number in range(1, 7)]
    suspects.looked(node(1), names, now_s)
    for step in steps:
        now_s += 0.15
        name = node(step.number)
        match step.does:
            case "asked":
                suspects.asked(name, now_s)
            case "answered":
                suspects.answered(name, now_s)
            case "refused":
                suspects.refused(name, now_s)
            case "hung up":
                suspects.hung_up(name)
            case "reported":
                suspects.reported(name, NodeId(step.by), now_s)
            case _:
                now_s += 0.6
        suspects.tick(now_s)
        assert node(1) not in suspects.suspected
        assert suspects.suspected.keys() <= set(names)
        if step.does == "answered":
            assert name not in suspects.suspected


def _unwatched(scene: Scene, but: Iterable[int] = ()) -> int:
    """A peer that node 1 does not watch."""
    watched = {name[0] for name in scene.suspects.watched}
    return next(
        number for number in range(2, scene.peers + 2) if number not in watched and number not in set(but)
    )


def _watched_by(policy: CacheRingSettings, name: PeerName, names: list[PeerName]) -> frozenset[PeerName]:
    suspects = Suspects(policy)
    suspects.looked(name, names, 0.0)
    return suspects.watched
