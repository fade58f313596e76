"""Consumer groups as the members of every client see them: sharing, handing over, dying, restarting,
resuming.

Members are processes (`tests/clients/members`), those of one group divided over the agents of both zones.
Scenarios mostly wait for session timeouts. So all selected scenarios run at the same time, and each test
waits for its own.
"""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.clients.conftest import NewTopic
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import ToolchainAbsent
from tests.clients.members.process import Member, members_of, wait_until
from tests.clients.members.program import Place
from tests.clients.members.table import VARIANTS, Variant
from tests.faults.wire import Wire, fetch

PARTITIONS = 6
SESSION_TIMEOUT_MS = 45_000
"""The timeout of all members except those that die, because on a busy machine a member may be silent for
seconds."""
SHORT_SESSION_MS = 4_000
AT_A_TIME = 6
OFFSET_OUT_OF_RANGE = 1
_SCENARIO_TIMEOUT_S = 480


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The parts of a scenario: its topic, its group, and the agents of both zones."""

    variant: Variant
    topic: str
    new_topic: NewTopic
    group: str
    zone_a: str
    zone_b: str
    start: Callable[..., Member]

    @property
    def everything(self) -> set[Place]:
        return {(self.topic, partition) for partition in range(PARTITIONS)}

    def produce(self, first: int, last: int) -> None:
        """Records named by the numbers `[first, last)`, spread over the partitions."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.zone_a, "linger.ms": 5})
        for number in range(first, last):
            producer.produce(self.topic, value=str(number), partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def shared_by(self, *members: Member) -> None:
        """Wait until every partition has exactly one owner, and every member some."""

        def shared() -> bool:
            owned = [member.owned for member in members]
            return (
                all(owned) and sum(map(len, owned)) == PARTITIONS and set().union(*owned) == self.everything
            )

        wait_until(shared, f"{PARTITIONS} partitions shared by {len(members)}", members)


def _values(*members: Member) -> list[int]:
    return sorted(int(record["value"]) for member in members for record in member.records)


def members_join_leave_and_die(scene: Scene) -> None:
    scene.produce(0, 60)
    first = scene.start("first", servers=scene.zone_a)
    scene.shared_by(first)
    first.until(lambda member: len(set(_values(member))) == 60, "all records")
    first.commit()

    before = len(first.events)
    second = scene.start("second", servers=scene.zone_b)
    scene.shared_by(first, second)
    given_up = first.gave_up(before)
    assert given_up, "no rebalance was seen"
    assert (given_up == scene.everything) is not scene.variant.keeps_partitions, first.describe()
    if scene.variant.keeps_partitions:
        assert given_up == second.owned, "only what moved was taken"

    second.leave()
    scene.shared_by(first)
    third = scene.start("third", servers=scene.zone_b, session_timeout_ms=SHORT_SESSION_MS)
    scene.shared_by(first, third)
    third.kill()
    scene.shared_by(first)
    scene.produce(60, 90)
    first.until(lambda member: set(range(60, 90)) <= set(_values(member)), "what came after the death")
    assert not second.records, "what was committed came again"
    assert not third.records, "what was committed came again"


def a_restarted_static_member_changes_nothing(scene: Scene) -> None:
    first = scene.start("first", servers=scene.zone_a, instance="one")
    scene.shared_by(first)
    second = scene.start("second", servers=scene.zone_b, instance="two")
    scene.shared_by(first, second)
    owned, before = second.owned, len(first.events)

    if scene.variant.protocol == "consumer":
        second.leave()  # says that it will be back; who dies is waited for until its session is over
    else:
        second.kill()
    again = scene.start("again", servers=scene.zone_a, instance="two")
    scene.shared_by(first, again)

    assert again.owned == owned
    assert not first.gave_up(before), "the others were disturbed"
    # Cooperative members are told last of all that the rebalance before gave them nothing.
    assert not any(event["added"] for event in first.told("assigned", before)), "the others were disturbed"


def a_twin_fences_the_older_one(scene: Scene) -> None:
    first = scene.start("first", servers=scene.zone_a, instance="one")
    older = scene.start("older", servers=scene.zone_b, instance="two")
    scene.shared_by(first, older)
    owned, before = older.owned, len(first.events)

    twin = scene.start("twin", servers=scene.zone_a, instance="two")
    scene.shared_by(first, twin)

    def fenced() -> bool:
        return any(
            re.search("fenced|instance.id", error["message"], re.IGNORECASE) for error in older.told("error")
        )

    wait_until(fenced, "the older twin heard that it is fenced", [first, twin])
    assert twin.owned == owned
    assert not first.gave_up(before), "the others were disturbed"


def offsets_are_where_the_next_member_begins(scene: Scene) -> None:
    scene.produce(0, 60)
    first = scene.start("first", servers=scene.zone_a)
    first.until(lambda member: len(set(_values(member))) == 60, "all records")
    committed = first.commit()
    assert committed == dict.fromkeys(scene.everything, 10)
    first.leave()
    assert _committed_offsets(scene) == committed

    scene.produce(60, 90)
    second = scene.start("second", servers=scene.zone_b)
    second.until(lambda member: len(_values(member)) >= 30, "the new records")
    assert _values(second) == list(range(60, 90)), "neither lost nor repeated"

    if not scene.variant.seeks:
        return
    before = len(second.records)
    second.order("seek", scene.topic, 3, 0)
    second.until(lambda member: len(member.records) >= before + 15, "partition 3 once more")
    assert {record["partition"] for record in second.records[before:]} == {3}
    assert second.commit() == dict.fromkeys(scene.everything, 15)


def offsets_that_are_gone_are_reset(scene: Scene) -> None:
    scene.produce(0, 60)
    first = scene.start("first", servers=scene.zone_a)
    first.until(lambda member: len(set(_values(member))) == 60, "all records")
    first.commit()
    first.leave()
    scene.produce(60, 120)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": scene.zone_b})
    gone = [confluent_kafka.TopicPartition(*place, 12) for place in sorted(scene.everything)]
    for deleted in admin.delete_records(gone).values():
        assert deleted.result(60).low_watermark == 12
    for servers in (scene.zone_a, scene.zone_b):
        _wait_until_gone(servers, scene, 11)

    second = scene.start("second", servers=scene.zone_b, reset="earliest")
    second.until(lambda member: len(_values(member)) >= 6 * 8, "what is left")
    assert {record["offset"] for record in second.records} == set(range(12, 20))
    assert _values(second) == list(range(6 * 12, 120))


def _wait_until_gone(servers: str, scene: Scene, offset: int) -> None:
    """An agent learns of records deleted through another agent with its next poll."""
    host, port = servers.split(":")
    with Wire((host, int(port))) as wire:

        def is_gone(place: Place) -> bool:
            code: int = wire.ask(*fetch(*place, offset)).responses[0].partitions[0].error_code
            return code == OFFSET_OUT_OF_RANGE

        wait_until(lambda: all(map(is_gone, scene.everything)), f"{offset} gone at {servers}", [])


def a_new_topic_that_matches_is_read(scene: Scene) -> None:
    member = scene.start("member", servers=scene.zone_a, topics=f"^{scene.topic}.*")
    scene.shared_by(member)

    later = scene.new_topic(2, scene.topic)
    member.until(
        lambda one: one.owned == scene.everything | {(later, 0), (later, 1)}, "the new topic's partitions"
    )


def members_change_the_protocol_one_by_one(scene: Scene) -> None:
    classic = {"protocol": "classic", "strategy": "range"}
    old = [scene.start(name, servers=scene.zone_a, **classic) for name in ("old 1", "old 2")]
    scene.shared_by(*old)
    scene.produce(0, 60)
    wait_until(lambda: len(set(_values(*old))) == 60, "all records", old)
    for member in old:
        member.commit()

    old[0].leave()
    new = [scene.start("new 1", servers=scene.zone_b)]
    scene.shared_by(old[1], new[0])
    old[1].leave()
    new.append(scene.start("new 2", servers=scene.zone_a))
    scene.shared_by(*new)

    new[0].leave()
    back = scene.start("back", servers=scene.zone_b, **classic)
    scene.shared_by(new[1], back)
    new[1].leave()
    scene.shared_by(back)
    scene.produce(60, 90)
    back.until(lambda member: set(range(60, 90)) <= set(_values(member)), "what came after both changes")
    assert not set(range(60)) & set(_values(*new, back)), "what was committed came again"


def offsets_are_committed_without_membership(scene: Scene) -> None:
    scene.produce(0, 60)
    first = scene.start("first", servers=scene.zone_a, assign=PARTITIONS)
    first.until(lambda member: len(_values(member)) == 60, "all records")
    committed = first.commit()
    assert _committed_offsets(scene) == committed == dict.fromkeys(scene.everything, 10)
    first.leave()

    scene.produce(60, 72)
    second = scene.start("second", servers=scene.zone_b, assign=PARTITIONS)
    second.until(lambda member: len(_values(member)) >= 12, "the new records")
    assert _values(second) == list(range(60, 72))


def _committed_offsets(scene: Scene) -> dict[Place, int]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": scene.zone_b})
    asked = confluent_kafka.ConsumerGroupTopicPartitions(scene.group)
    found = admin.list_consumer_group_offsets([asked])[scene.group].result(60)
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}


Scenario = Callable[[Scene], None]
_SHOWS: Mapping[Scenario, tuple[str, ...]] = {
    members_join_leave_and_die: (
        "consume: as a group",
        "group: members join and leave",
        "group: a member dies",
    ),
    a_restarted_static_member_changes_nothing: ("group: static membership",),
    a_twin_fences_the_older_one: ("group: static membership",),
    offsets_are_where_the_next_member_begins: ("offsets: commit and fetch", "offsets: seek"),
    offsets_that_are_gone_are_reset: ("offsets: reset",),
    offsets_are_committed_without_membership: (
        "offsets: commit without membership",
        "consume: assigned partitions",
    ),
    a_new_topic_that_matches_is_read: ("group: topics by regular expression",),
    members_change_the_protocol_one_by_one: ("group: changes between protocols while it runs",),
}


def _is_offered(variant: Variant, scenario: Scenario) -> bool:
    if scenario is a_restarted_static_member_changes_nothing:
        return variant.static
    if scenario is a_twin_fences_the_older_one:
        return variant.static and variant.foreign and variant.protocol == "classic"
    if scenario is a_new_topic_that_matches_is_read:
        return variant.patterns
    if scenario is offsets_are_committed_without_membership:
        return not variant.foreign  # tests/clients/test_foreign_offsets.py
    return variant.protocol == "consumer" or scenario is not members_change_the_protocol_one_by_one


def _shown(variant: Variant, scenario: Scenario) -> tuple[str, ...]:
    """The features of a client that a scenario shows, with what the variant itself is about."""
    shows = tuple(feature for feature in _SHOWS[scenario] if variant.seeks or feature != "offsets: seek")
    if scenario is members_join_leave_and_die and variant.protocol == "consumer":
        shows = (*shows, "group: the new protocol (KIP-848)")
    elif scenario is members_join_leave_and_die and variant.keeps_partitions:
        shows = (*shows, "group: cooperative, partitions kept")
    return shows


_PLAYS = {
    f"{variant.name}: {scenario.__name__}": (variant, scenario)
    for variant in VARIANTS
    for scenario in _SHOWS
    if _is_offered(variant, scenario)
}


@pytest.fixture(scope="module")
def playing(
    request: pytest.FixtureRequest, new_topic: NewTopic, zone_a: str, zone_b: str
) -> Iterator[Mapping[str, Future[None]]]:
    """The scenarios that were selected, running side by side."""
    selected = [str(_params(item)["play"]) for item in request.session.items if "play" in _params(item)]

    commands = {play: _command(_PLAYS[play][0], request) for play in selected}

    def run(play: str) -> None:
        (variant, scenario), command = _PLAYS[play], commands[play]
        if isinstance(command, ToolchainAbsent):
            raise command
        topic = new_topic(PARTITIONS)
        group = f"group-{uuid.uuid4().hex[:8]}"
        given = (
            "--group", group, "--topics", topic, "--protocol", variant.protocol, "--strategy",
            variant.strategy,
            "--session-timeout-ms", str(SESSION_TIMEOUT_MS),
        )  # fmt: skip
        with members_of(command, *given) as start:
            scenario(
                Scene(
                    variant=variant,
                    topic=topic,
                    new_topic=new_topic,
                    group=group,
                    zone_a=zone_a,
                    zone_b=zone_b,
                    start=start,
                )
            )

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {play: pool.submit(run, play) for play in selected}
        pool.shutdown(cancel_futures=True)


def _command(variant: Variant, request: pytest.FixtureRequest) -> Sequence[str] | ToolchainAbsent:
    java: Any = None if variant.foreign else request.getfixturevalue("java")
    try:
        return variant.command(java)
    except ToolchainAbsent as absent:
        return absent


def _params(item: pytest.Item) -> Mapping[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.mark.timeout(_SCENARIO_TIMEOUT_S)
@pytest.mark.parametrize(
    "play",
    [
        pytest.param(
            play,
            id=play,
            marks=[
                tried(variant.client, *_shown(variant, scenario)),
                *([pytest.mark.clients] if variant.foreign else []),
            ],
        )
        for play, (variant, scenario) in _PLAYS.items()
    ],
)
def test_group(play: str, playing: Mapping[str, Future[None]]) -> None:
    playing[play].result(_SCENARIO_TIMEOUT_S)
