"""What clients of other languages administer: topics, their configs, groups, the cluster."""

import contextlib
import uuid

import pytest

from tests.clients.conftest import NewTopic
from tests.clients.foreign import Program, ProgramFailed
from tests.clients.members.process import members_of
from tests.clients.offering import each_offering
from tests.support.waiting import wait_until

pytestmark = pytest.mark.clients


@each_offering("admin: create, describe, grow, delete topics")
def test_a_topic_is_created_described_grown_and_deleted(client: Program, zone_a: str, zone_b: str) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"

    client.answer("create-topic", servers=zone_a, topic=topic, count=2, configs={"retention.ms": "7200000"})
    assert client.answer("describe-topic", servers=zone_b, topic=topic) == {"exists": True, "partitions": 2}
    with pytest.raises(ProgramFailed, match=r"(?i)exists"):
        client.answer("create-topic", servers=zone_b, topic=topic, count=2, configs={})

    client.answer("create-partitions", servers=zone_a, topic=topic, count=5)
    # As in Kafka, what was done through one agent is seen in the others' Metadata a moment later.
    wait_until(lambda: client.answer("describe-topic", servers=zone_b, topic=topic)["partitions"] == 5)

    client.answer("delete-topic", servers=zone_a, topic=topic)
    wait_until(lambda: not client.answer("describe-topic", servers=zone_b, topic=topic)["exists"])


@each_offering("admin: configs")
def test_configs_of_a_topic_are_described_and_altered(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(1, "configs", {"retention.ms": "3600000"})
    assert (
        client.answer("describe-configs", servers=zone_b, topic=topic)["configs"]["retention.ms"] == "3600000"
    )

    client.answer("alter-configs", servers=zone_a, topic=topic, configs={"retention.ms": "7200000"})

    assert (
        client.answer("describe-configs", servers=zone_b, topic=topic)["configs"]["retention.ms"] == "7200000"
    )
    with contextlib.suppress(ProgramFailed):  # rust-rdkafka 0.39 does not pass on what is refused
        client.answer("alter-configs", servers=zone_a, topic=topic, configs={"retention.ms": "soon"})
    assert (
        client.answer("describe-configs", servers=zone_b, topic=topic)["configs"]["retention.ms"] == "7200000"
    )


@each_offering("admin: list and describe groups", "admin: delete groups")
def test_groups_are_listed_described_and_deleted_when_nobody_is_left(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(2, "listed")
    group = f"{topic}-group"
    given = ("--group", group, "--topics", topic, "--strategy", "roundrobin", "--session-timeout-ms", "45000")
    with members_of(client.command, *given) as start:
        ann = start("ann", servers=zone_a)
        ann.until(lambda member: len(member.owned) == 2, "both partitions")

        assert group in client.answer("list-groups", servers=zone_b)["groups"]
        assert client.answer("describe-group", servers=zone_b, group=group) == {
            "state": "Stable",
            "members": 1,
        }
        with pytest.raises(ProgramFailed, match=r"(?i)empty"):
            client.answer("delete-group", servers=zone_b, group=group)
        ann.leave()

    assert client.answer("describe-group", servers=zone_a, group=group) == {"state": "Empty", "members": 0}
    client.answer("delete-group", servers=zone_b, group=group)
    assert group not in client.answer("list-groups", servers=zone_a)["groups"]


@each_offering("admin: delete offsets of groups")
def test_offsets_of_a_group_are_deleted_one_by_one(
    client: Program, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(2, "forgotten")
    group = f"{topic}-group"
    client.answer("commit", servers=zone_a, group=group, topic=topic, offsets={"0": 7, "1": 3})

    client.answer("delete-offsets", servers=zone_b, group=group, topic=topic, offsets={"0": -1})

    asked = [{"partition": p, "from": 0, "count": 0} for p in range(2)]
    committed = client.answer("committed", servers=zone_a, group=group, topic=topic, partitions=asked)
    assert committed["offsets"] == {"1": 3}


@each_offering("admin: describe cluster")
def test_the_cluster_is_both_agents(client: Program, zone_a: str, zone_b: str) -> None:
    for asked in (zone_a, zone_b):
        assert set(client.answer("describe-cluster", servers=asked)["brokers"]) == {zone_a, zone_b}
