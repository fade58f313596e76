"""Transactional batches belong to the transactional id that their request names, whoever's producer id they
have.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.settings import AgentSettings
from agent.transactional_ids import TransactionalIds
from sequencer.client import Sequencer
from sequencer.commits.producers import ProducerIdentity
from sequencer.settings import SequencerSettings
from storage.identifiers import ProducerId
from tests.agent.kafka.apis.produce.test_produce import a_topic, produced, with_crc
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_batch

pytestmark = pytest.mark.asyncio(loop_scope="module")

NONE = ErrorCode.none
OF_ANOTHER_ID = ErrorCode.invalid_producer_id_mapping
OUTSIDE = ErrorCode.invalid_txn_state
FENCED = ErrorCode.invalid_producer_epoch


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sequencer(module_database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(module_database_url, SequencerSettings())
    yield opened
    await opened.close()


def ids_of(agent: Running) -> TransactionalIds:
    assembly = agent.app._reached.assembly
    assert assembly is not None
    return assembly.parts.transactional_ids


async def begin(wire: Wire, transactional_id: str) -> ProducerIdentity:
    answer = await wire.ask(
        request(
            22,
            4,
            transactional_id=transactional_id,
            transaction_timeout=timedelta(seconds=60),
            producer_id=-1,
            producer_epoch=-1,
        )
    )
    assert ErrorCode(answer.error_code) is NONE
    return ProducerIdentity(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


async def code_of(
    wire: Wire, topic: str, transactional_id: str, identity: ProducerIdentity, sequence: int = 0
) -> ErrorCode:
    plain = a_batch(b"v", producer=(identity.producer_id, identity.producer_epoch, sequence))
    batch = with_crc(plain[:21] + b"\x00\x10" + plain[23:])
    answer = await produced(wire, topic, batch, version=12, transactional_id=transactional_id)
    return ErrorCode(answer.error_code)


async def partitions_in(sequencer: Sequencer, transactional_id: str) -> int:
    """Returns how many partitions are in the open transaction of the id."""
    return len((await sequencer.transactions.describe([transactional_id]))[transactional_id].partitions)


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_batch_does_not_join_the_transaction_of_another_transactional_id(
    agent: Running, sequencer: Sequencer, wire: Wire, is_known: bool
) -> None:
    topic = (await a_topic(wire, f"joined-{is_known}")).name
    victim, mine = f"victim-{is_known}", f"mine-{is_known}"
    identity = await begin(wire, victim)
    if not is_known:
        ids_of(agent).forget_all()

    assert await code_of(wire, topic, mine, identity) is OF_ANOTHER_ID
    own = await begin(wire, mine)
    assert await code_of(wire, topic, mine, identity) is OF_ANOTHER_ID
    assert await partitions_in(sequencer, victim) == 0

    assert await code_of(wire, topic, victim, identity) is NONE
    assert await code_of(wire, topic, mine, own) is NONE
    assert await code_of(wire, topic, mine, identity, 1) is OF_ANOTHER_ID
    assert await code_of(wire, topic, victim, own, 1) is OF_ANOTHER_ID


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_earlier_producer_of_the_transactional_id_is_fenced(
    agent: Running, sequencer: Sequencer, wire: Wire, is_known: bool
) -> None:
    topic, name = (await a_topic(wire, f"fenced-{is_known}")).name, f"fenced-{is_known}"
    zombie = await begin(wire, name)
    assert await code_of(wire, topic, name, zombie) is NONE
    current = await begin(wire, name)
    assert current.producer_id == zombie.producer_id
    if not is_known:
        ids_of(agent).forget_all()

    assert await code_of(wire, topic, name, zombie, 1) is FENCED
    assert await code_of(wire, topic, name, current) is NONE
    assert await partitions_in(sequencer, name) == 1


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM transactions WHERE transactional_id = %(id)s",
        "UPDATE transactions SET producer_epoch = 32766 WHERE transactional_id = %(id)s",
    ],
    ids=["expired", "epochs used up"],
)
async def test_a_new_producer_id_of_a_transactional_id_takes_the_place_of_the_old_one(
    agent: Running, sequencer: Sequencer, wire: Wire, change: str, is_known: bool
) -> None:
    name = f"renewed-{change[:6]}-{is_known}"
    topic = (await a_topic(wire, name)).name
    old = await begin(wire, name)
    await sequencer.database.run(change, id=name)
    new = await begin(wire, name)
    if not is_known:
        ids_of(agent).forget_all()

    assert new.producer_id != old.producer_id
    assert await code_of(wire, topic, name, old) is OUTSIDE
    assert await code_of(wire, topic, name, new) is NONE
    assert await code_of(wire, topic, "another", new, 1) is OF_ANOTHER_ID


async def test_a_producer_id_that_was_guessed_before_it_was_given_out_joins_nothing(
    sequencer: Sequencer, wire: Wire
) -> None:
    topic = (await a_topic(wire, "guessed")).name
    identity = ProducerIdentity(producer_id=ProducerId(987_654_321), producer_epoch=0)

    assert await code_of(wire, topic, "guesser", identity) is OUTSIDE
    await sequencer.database.run(
        "INSERT INTO transactions (transactional_id, producer_id, producer_epoch, timeout_ms) "
        "VALUES ('guessed', 987654321, 0, 60000)"
    )
    assert await code_of(wire, topic, "guesser", identity) is OF_ANOTHER_ID
    assert await code_of(wire, topic, "guessed", identity) is NONE


async def test_only_an_agent_that_does_not_know_a_producer_id_looks_it_up_and_once(
    agent: Running, wire: Wire
) -> None:
    topic, ids = (await a_topic(wire, "looked-up")).name, ids_of(agent)
    identity = await begin(wire, "looked-up")
    before = ids.statements
    assert await code_of(wire, topic, "looked-up", identity) is NONE
    assert ids.statements == before

    ids.forget_all()
    for sequence in range(1, 4):
        assert await code_of(wire, topic, "looked-up", identity, sequence) is NONE
    assert ids.statements == before + 1


async def test_an_agent_remembers_a_bounded_number_of_producer_ids(sequencer: Sequencer) -> None:
    settings = AgentSettings(database_url="postgresql://unused", store_url="s3://unused")  # type: ignore[arg-type]
    ids = TransactionalIds(sequencer.transactions, settings, most_known=2)
    for number in range(3):
        ids.note(ProducerId(number), f"id-{number}")

    assert len(ids) == 2
    assert [ids.known(ProducerId(number)) for number in range(3)] == [None, "id-1", "id-2"]
    assert await ids.of([ProducerId(0), ProducerId(2)]) == {2: "id-2"}
    assert ids.known(ProducerId(0)) is None


async def test_what_was_looked_up_before_everything_was_forgotten_is_not_remembered(
    sequencer: Sequencer,
) -> None:
    settings = AgentSettings(database_url="postgresql://unused", store_url="s3://unused")  # type: ignore[arg-type]
    ids = TransactionalIds(sequencer.transactions, settings)
    identity = await sequencer.transactions.initialize("forgotten", 60_000)
    assert isinstance(identity, ProducerIdentity)

    asked = asyncio.create_task(ids.of([identity.producer_id]))
    while not ids.statements:  # noqa: ASYNC110 - the look-up is then on its way, and not answered yet
        await asyncio.sleep(0)
    ids.forget_all()

    assert await asked == {identity.producer_id: "forgotten"}
    assert len(ids) == 0
