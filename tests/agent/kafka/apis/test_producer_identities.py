"""Producer ids, epochs and sequences through an agent, frame by frame: they wrap, are bumped and are
forgotten.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from sequencer.client import Sequencer
from sequencer.commits.producers import LAST_EPOCH
from sequencer.settings import SequencerSettings
from tests.agent.kafka.apis.produce.test_produce import a_topic, produced
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAST_SEQUENCE = 2**31 - 1
_NO_TIMEOUT = timedelta(0)


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


@pytest_asyncio.fixture(loop_scope="module")
async def sequencer(module_database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(module_database_url, SequencerSettings())
    yield opened
    await opened.close()


async def identity(wire: Wire, producer_id: int = -1, epoch: int = -1, version: int = 4) -> tuple[int, int]:
    """Returns InitProducerId's answer to a producer that names this id and epoch."""
    answer = await wire.ask(
        request(
            22,
            version,
            transactional_id=None,
            transaction_timeout=_NO_TIMEOUT,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
    )
    assert answer.error_code is ErrorCode.none
    return answer.producer_id, answer.producer_epoch


async def answered(
    wire: Wire, topic: str, producer: tuple[int, int, int], records: int = 1
) -> tuple[ErrorCode, int]:
    answer = await produced(wire, topic, a_batch(*[b"x"] * records, producer=producer))
    return answer.error_code, answer.base_offset


@pytest.mark.parametrize("version", range(6))
async def test_each_producer_gets_an_id_of_its_own(wire: Wire, version: int) -> None:
    first, second = await identity(wire, version=version), await identity(wire, version=version)

    assert first[0] < second[0] < 2**53, "a client that keeps ids in doubles would mistake one for another"
    assert (first[1], second[1]) == (0, 0)


async def test_a_producer_that_names_its_id_goes_on_with_the_next_epoch(wire: Wire) -> None:
    topic = await a_topic(wire, "bumped")
    producer_id, epoch = await identity(wire)
    assert await answered(wire, topic.name, (producer_id, epoch, 0)) == (ErrorCode.none, 0)

    bumped = await identity(wire, producer_id, epoch)

    assert bumped == (producer_id, epoch + 1)
    assert await answered(wire, topic.name, (*bumped, 0)) == (ErrorCode.none, 1)
    assert (await answered(wire, topic.name, (producer_id, epoch, 1)))[0] is ErrorCode.invalid_producer_epoch


async def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(wire: Wire) -> None:
    topic = await a_topic(wire, "epochs-used-up")
    producer_id, _ = await identity(wire)
    assert await answered(wire, topic.name, (producer_id, LAST_EPOCH - 1, 0)) == (ErrorCode.none, 0)

    fresh, epoch = await identity(wire, producer_id, LAST_EPOCH - 1)

    assert fresh != producer_id
    assert epoch == 0
    assert await answered(wire, topic.name, (fresh, epoch, 0)) == (ErrorCode.none, 1)


async def test_sequences_go_on_at_0_after_the_last_one(wire: Wire, sequencer: Sequencer) -> None:
    topic = await a_topic(wire, "wrapped")
    producer_id, epoch = await identity(wire)
    await answered(wire, topic.name, (producer_id, epoch, 0))
    await sequencer.database.run(
        (
            "UPDATE producer_state SET sequences = ARRAY[%(before)s * 2147483648 + %(before)s] WHERE "
            "producer_id = %(id)s"
        ),
        before=LAST_SEQUENCE - 3,
        id=producer_id,
    )

    def batch(sequence: int, records: int) -> tuple[tuple[int, int, int], int]:
        return (producer_id, epoch, sequence), records

    crossing, after = batch(LAST_SEQUENCE - 2, 5), batch(2, 1)
    answers = [
        await answered(wire, topic.name, *sent) for sent in (after, crossing, after, crossing, batch(3, 1))
    ]

    assert answers == [
        (ErrorCode.not_enough_replicas, -1),
        (ErrorCode.none, 1),
        (ErrorCode.none, 6),
        (ErrorCode.none, 1),
        (ErrorCode.none, 7),
    ]


async def test_a_forgotten_producer_gets_the_log_start_and_restarts_with_its_next_epoch(
    wire: Wire, sequencer: Sequencer
) -> None:
    topic = await a_topic(wire, "forgotten")
    producer_id, epoch = await identity(wire)
    assert await answered(wire, topic.name, (producer_id, epoch, 0)) == (ErrorCode.none, 0)
    await sequencer.producers.expire(unused_for_s=0, cap=1000)

    answer = await produced(wire, topic.name, a_batch(b"x", producer=(producer_id, epoch, 1)))
    bumped = await identity(wire, producer_id, epoch)

    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.unknown_producer_id, 0)
    assert await answered(wire, topic.name, (*bumped, 0)) == (ErrorCode.none, 1)


async def test_a_repeat_from_long_ago_is_a_duplicate_whose_offset_is_not_known(wire: Wire) -> None:
    topic = await a_topic(wire, "long-ago")
    producer_id, epoch = await identity(wire)
    for sequence in range(11):
        await answered(wire, topic.name, (producer_id, epoch, sequence))

    assert await answered(wire, topic.name, (producer_id, epoch, 0)) == (
        ErrorCode.duplicate_sequence_number,
        -1,
    )
    assert await answered(wire, topic.name, (producer_id, epoch, 1)) == (ErrorCode.none, 1)


async def test_a_new_producers_second_batch_waits_for_its_first(wire: Wire) -> None:
    """The first may be on its way through another agent."""
    topic = await a_topic(wire, "second-first")
    producer_id, epoch = await identity(wire)

    answers = [await answered(wire, topic.name, (producer_id, epoch, sequence)) for sequence in (1, 0, 1)]

    assert answers == [(ErrorCode.not_enough_replicas, -1), (ErrorCode.none, 0), (ErrorCode.none, 1)]
