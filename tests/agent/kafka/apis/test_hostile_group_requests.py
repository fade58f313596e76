"""Random group requests that no client sends: each is answered, and no group and no connection breaks."""

import logging
import random
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode
from kio.schema.streams_group_heartbeat.v0 import request as schema
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32, u16

from agent.groups.settings import GroupSettings
from tests.agent.groups.subscriptions import subscription
from tests.agent.kafka.apis.groups_by_hand import SESSION, a_join, consume
from tests.agent.kafka.apis.streams_by_hand import a_subtopology, a_topic_info, a_topology
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, running
from tests.support.seeds import seeds

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUESTS = 1500
SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=1,
    group_consumer_session_timeout_ms=200,
    group_streams_session_timeout_ms=200,
    group_streams_heartbeat_interval_ms=50,
    group_streams_initial_rebalance_delay_ms=50,
    group_streams_num_standby_replicas=1,
    group_lease_renew_s=0.1,
)
TEXTS = (
    "",
    "a",
    "b",
    "a\0b",
    "x" * 300,
    "x" * 5000,
    "😀\u202e",
    " ",
    "range",
    "consumer",
    "orders",
    "(",
    "[a-z]+",
    ".*",
)
NUMBERS = (0, 1, -1, 2, -2, -3, 5, 2**31 - 1, -(2**31))
BLOBS = (
    b"",
    b"\x00",
    b"\xff" * 40,
    subscription("orders"),
    b"\x00\x03\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff",
    b"\x7f\xff" * 20,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with running(module_database_url, group_settings=SETTINGS, default_partitions=3) as started:
        yield started


class Chance:
    """Requests of one seed. `known` are member ids from earlier answers, so that some requests go deeper."""

    def __init__(self, seed: int, topic_id: UUID) -> None:
        self._random = random.Random(seed)
        self._topic_ids = (topic_id, UUID(int=9), None)
        self.known = ["nobody"]
        self._makers: tuple[Callable[[], Any], ...] = (
            self._join, self._join, self._sync, self._heartbeat, self._leave, self._commit, self._fetch,
            self._describe,
            self._list, self._delete, self._forget, self._consume, self._consume, self._describe_consumers,
            self._stream, self._stream, self._describe_streams,
        )  # fmt: skip

    def request(self) -> Any:
        return self._random.choice(self._makers)()

    def _text(self) -> str:
        return self._random.choice(TEXTS)

    def _maybe(self, value: Any) -> Any:
        return self._random.choice((None, value))

    def _group(self) -> str:
        return self._random.choice(("a", "b", "c", self._text()))

    def _member(self) -> str:
        return self._random.choice(("", *self.known[-5:], self._text()))

    def _number(self) -> int:
        return self._random.choice(NUMBERS)

    def _time(self) -> timedelta:
        return timedelta(milliseconds=self._random.choice((-1, 0, 1, 50, 100, 100, 60_000, 2**31 - 1)))

    def _some(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self._random.choice((0, 1, 1, 2, 5)))]

    def _version(self, first: int, last: int) -> int:
        return self._random.randint(first, last)

    def _join(self) -> Any:
        return request(
            11,
            self._version(0, 9),
            group_id=self._group(),
            member_id=self._member(),
            session_timeout=timedelta(milliseconds=self._random.choice((-1, 50, 100))),
            rebalance_timeout=timedelta(milliseconds=self._random.choice((-1, 0, 50, 100))),
            group_instance_id=self._maybe(self._text()),
            protocol_type=self._random.choice(("consumer", "consumer", self._text())),
            protocols=self._some(lambda: {"name": self._text(), "metadata": self._random.choice(BLOBS)}),
            reason=self._maybe(self._text()),
        )

    def _sync(self) -> Any:
        return request(
            14,
            self._version(0, 5),
            group_id=self._group(),
            generation_id=self._number(),
            member_id=self._member(),
            group_instance_id=self._maybe(self._text()),
            protocol_type=self._maybe(self._text()),
            protocol_name=self._maybe(self._text()),
            assignments=self._some(
                lambda: {"member_id": self._member(), "assignment": self._random.choice(BLOBS)}
            ),
        )

    def _heartbeat(self) -> Any:
        return request(
            12,
            self._version(0, 4),
            group_id=self._group(),
            generation_id=self._number(),
            member_id=self._member(),
            group_instance_id=self._maybe(self._text()),
        )

    def _leave(self) -> Any:
        return request(
            13,
            self._version(0, 5),
            group_id=self._group(),
            member_id=self._member(),
            members=self._some(
                lambda: {
                    "member_id": self._member(),
                    "group_instance_id": self._maybe(self._text()),
                    "reason": None,
                }
            ),
        )

    def _partition(self) -> dict[str, Any]:
        return {
            "partition_index": self._number(),
            "committed_offset": self._random.choice((0, 1, -1, 2**63 - 1, -(2**63))),
            "committed_leader_epoch": self._number(),
            "committed_metadata": self._maybe(self._text()),
        }

    def _topic(self, **values: Any) -> dict[str, Any]:
        return {"name": self._text(), "topic_id": self._random.choice(self._topic_ids), **values}

    def _commit(self) -> Any:
        return request(
            8,
            self._version(2, 10),
            group_id=self._group(),
            generation_id_or_member_epoch=self._number(),
            member_id=self._member(),
            group_instance_id=self._maybe(self._text()),
            retention_time=self._time(),
            topics=self._some(lambda: self._topic(partitions=self._some(self._partition))),
        )

    def _fetch(self) -> Any:
        version = self._version(1, 10)

        def topics() -> Any:
            return self._some(lambda: self._topic(partition_indexes=tuple(self._some(self._number))))

        def group() -> dict[str, Any]:
            return {
                "group_id": self._group(),
                "member_id": self._maybe(self._member()),
                "member_epoch": self._number(),
                "topics": self._maybe(topics()),
            }

        if version >= 8:
            return request(9, version, groups=self._some(group), require_stable=True)
        asked = topics() if version == 1 else self._maybe(topics())
        return request(9, version, group_id=self._group(), topics=asked, require_stable=False)

    def _describe(self) -> Any:
        groups = tuple(self._some(self._group))
        return request(15, self._version(0, 6), groups=groups, include_authorized_operations=True)

    def _list(self) -> Any:
        states, kinds = tuple(self._some(self._text)), tuple(self._some(self._text))
        return request(16, self._version(0, 5), states_filter=states, types_filter=kinds)

    def _delete(self) -> Any:
        return request(42, self._version(0, 2), groups_names=tuple(self._some(self._group)))

    def _forget(self) -> Any:
        parts = self._some(lambda: {"partition_index": self._number()})
        return request(
            47, 0, group_id=self._group(), topics=self._some(lambda: self._topic(partitions=parts))
        )

    def _consume(self) -> Any:
        names, regex = self._maybe(tuple(self._some(self._text))), self._maybe(self._text())
        owned = self._some(
            lambda: {
                "topic_id": self._random.choice(self._topic_ids),
                "partitions": tuple(self._some(self._number)),
            }
        )
        return request(
            68,
            self._version(0, 1),
            group_id=self._group(),
            member_id=self._member(),
            member_epoch=self._number(),
            instance_id=self._maybe(self._text()),
            rack_id=self._maybe(self._text()),
            rebalance_timeout=self._time(),
            subscribed_topic_names=names,
            subscribed_topic_regex=regex,
            server_assignor=self._maybe(self._random.choice(("uniform", "range", self._text()))),
            topic_partitions=self._random.choice((None, [], owned)),
        )

    def _stream(self) -> Any:
        epoch = self._random.choice((0, 0, 1, self._number()))
        nothing = () if epoch == 0 else None
        tasks = self._random.choice((nothing, nothing, self._tasks()))
        tags = self._some(lambda: {"key": self._text(), "value": self._text()})
        return request(
            88,
            0,
            group_id=self._group(),
            member_id=self._member(),
            member_epoch=epoch,
            endpoint_information_epoch=self._number(),
            instance_id=self._random.choice((None, None, None, self._text())),
            rack_id=self._maybe(self._text()),
            rebalance_timeout=self._time(),
            topology=self._topology() if epoch == 0 else None,
            active_tasks=tasks,
            standby_tasks=self._random.choice((tasks, tasks, nothing)),
            warmup_tasks=tasks,
            process_id=self._random.choice(("p", "q", "q", self._text(), None)),
            user_endpoint=self._maybe(schema.Endpoint(host=self._text(), port=u16(80))),
            client_tags=self._maybe(tags),
            task_offsets=None,
            task_end_offsets=None,
            shutdown_application=self._random.random() < 0.1,
        )

    def _tasks(self) -> Any:
        return tuple(
            schema.TaskIds(
                subtopology_id=self._text(), partitions=tuple(i32(n) for n in self._some(self._number))
            )
            for _ in range(2)
        )

    def _topology(self) -> Any:
        def names() -> Any:
            return tuple(map(TopicName, self._some(lambda: self._random.choice(("orders", "r", "c", "x")))))

        def internal() -> Any:
            return tuple(
                a_topic_info(
                    self._random.choice(("r", "c", "hostile", self._text())),
                    self._random.choice((0, 0, 0, 1, self._number())),
                    {self._random.choice(("cleanup.policy", self._text())): "compact"},
                )
                for _ in range(self._random.choice((0, 1, 2)))
            )

        return a_topology(
            *(
                a_subtopology(
                    self._random.choice(("0", "1", "2", self._text())),
                    *names(),
                    source_topic_regex=self._random.choice(((), (), (), (self._text(),))),
                    repartition_sink_topics=self._random.choice(((), names())),
                    repartition_source_topics=internal(),
                    state_changelog_topics=internal(),
                    copartition_groups=tuple(
                        schema.CopartitionGroup(
                            source_topics=(i16(self._random.choice((0, 1, -1))),),
                            repartition_source_topics=(i16(self._random.choice((0, 7))),),
                        )
                        for _ in range(self._random.choice((0, 0, 1)))
                    ),
                )
                for _ in range(self._random.choice((0, 1, 2)))
            ),
            epoch=self._random.choice((0, 0, 1, self._number())),
        )

    def _describe_streams(self) -> Any:
        groups = tuple(self._some(self._group))
        return request(89, 0, group_ids=groups, include_authorized_operations=False)

    def _describe_consumers(self) -> Any:
        groups = tuple(self._some(self._group))
        return request(69, self._version(0, 1), group_ids=groups, include_authorized_operations=False)


@pytest.mark.parametrize("seed", seeds(2))
async def test_every_hostile_request_is_answered(
    agent: Running, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    wire = await Wire.connect(agent.app.kafka_port)
    topic = (await wire.ask(a_metadata("orders", version=12))).topics[0]
    chance = Chance(seed, topic.topic_id)

    with caplog.at_level(logging.ERROR):
        for _ in range(REQUESTS):
            answer = await wire.ask(chance.request(), client_id=None)
            if getattr(answer, "member_id", None):
                chance.known.append(answer.member_id)

    assert [record.getMessage() for record in caplog.records] == []
    wire.close()


@pytest.mark.parametrize("member_id", ["x" * 5000, "a\0b"])
async def test_a_classic_member_of_an_impossible_id_harms_no_group_of_the_new_protocol(
    agent: Running, caplog: pytest.LogCaptureFixture, member_id: str
) -> None:
    wire = await Wire.connect(agent.app.kafka_port)
    await wire.ask(a_metadata("orders", version=12))
    await consume(wire, "impossible", 0)
    offered = [{"name": "range", "metadata": subscription("orders")}]

    with caplog.at_level(logging.ERROR):
        joined = await wire.ask(a_join("impossible", member_id, session_timeout=SESSION, protocols=offered))

    assert joined.error_code is ErrorCode.unknown_member_id
    assert [record.getMessage() for record in caplog.records] == []
    wire.close()


async def test_a_request_that_names_many_groups_takes_no_place_from_others(module_database_url: str) -> None:
    nobody = tuple(f"nobody-{number}" for number in range(1_000))
    asked = [
        {"group_id": group_id, "topics": None, "member_id": None, "member_epoch": -1} for group_id in nobody
    ]
    settings = GroupSettings(group_queue_events=100)
    async with running(module_database_url, zone="many", group_settings=settings) as bounded:
        wire = await Wire.connect(bounded.app.kafka_port)

        fetched = await wire.ask(request(9, 8, groups=asked, require_stable=True))
        described = await wire.ask(request(15, 5, groups=nobody, include_authorized_operations=False))
        consumers = await wire.ask(request(69, 0, group_ids=nobody, include_authorized_operations=False))

        codes = {group.error_code for group in (*fetched.groups, *described.groups, *consumers.groups)}
        assert ErrorCode.none in codes
        assert ErrorCode.coordinator_load_in_progress not in codes
        wire.close()
