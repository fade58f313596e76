"""Transactions that each client writes and reads, compared with those that librdkafka reads and writes."""

from collections.abc import Callable, Mapping

import confluent_kafka
import pytest

from tests.clients.adapters import DEADLINE_S, JavaClient, Sent
from tests.clients.adapters import Confluent as Plain
from tests.clients.conftest import NewTopic
from tests.clients.foreign import PROGRAMS
from tests.clients.matrix import tried
from tests.clients.matrix_plugin import Matrix
from tests.clients.not_offered import NOT_OFFERED
from tests.clients.transactional import (
    AioKafka,
    ApacheKafka,
    Confluent,
    Foreign,
    KafkaPython,
    Transaction,
    Transactional,
    Transform,
    Values,
)

pytestmark = pytest.mark.clients

PARTITIONS = 3
_JAVA = "kafka-clients"
_PYTHON: Mapping[str, Callable[[], Transactional]] = {"aiokafka": AioKafka, "kafka-python": KafkaPython}


def each_client(feature: str) -> pytest.MarkDecorator:
    """Once per client that offers the feature, except librdkafka itself."""
    names = [name for name in (*_PYTHON, _JAVA, *PROGRAMS) if (name, feature) not in NOT_OFFERED]
    cases = [pytest.param(name, marks=tried(name, feature), id=name) for name in names]
    return pytest.mark.parametrize("transactional", cases, indirect=True)


@pytest.fixture
def transactional(request: pytest.FixtureRequest, matrix: Matrix) -> Transactional:
    """A client by its name in the matrix."""
    name: str = request.param
    if name in _PYTHON:
        return _PYTHON[name]()
    if name == _JAVA:
        java_client: JavaClient = request.getfixturevalue("java_client")
        return ApacheKafka(client=java_client)
    program = PROGRAMS[name]
    program.make()
    matrix.note_version(name, program.answer("version")["version"])
    return Foreign(program=program)


def _transactions(*commits: bool) -> list[Transaction]:
    """Two records in each partition and transaction."""
    return [
        Transaction(
            records=tuple((i % PARTITIONS, f"{number}-{i}") for i in range(2 * PARTITIONS)), commit=commit
        )
        for number, commit in enumerate(commits)
    ]


def _values(transactions: list[Transaction], *, committed: bool) -> Values:
    """What must be read of each partition."""
    written: Values = {partition: [] for partition in range(PARTITIONS)}
    for one in transactions:
        for partition, value in one.records:
            if one.commit or not committed:
                written[partition].append(value)
    return written


@each_client("transactions: produce")
def test_each_clients_transactions_are_seen_whole_or_not_at_all(
    transactional: Transactional, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(PARTITIONS, "transacted")
    transactions = _transactions(True, False, True, False, False, True, True, False)

    transactional.transact(zone_a, topic, f"{topic}-tx", transactions)
    again = _transactions(False, True)
    transactional.transact(zone_b, topic, f"{topic}-tx", again)

    for committed in (True, False):
        expected = _values([*transactions, *again], committed=committed)
        assert Confluent().read(zone_b, topic, range(PARTITIONS), committed=committed) == expected


@each_client("transactions: offsets")
def test_each_clients_offsets_take_effect_with_their_transaction(
    transactional: Transactional, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    source, target = new_topic(1, "source"), new_topic(PARTITIONS, "target")
    Plain().produce(zone_a, source, 0, [Sent(key=None, value=b"v", timestamp_ms=0)] * 20, "none")
    of = Transform(source=source, group=f"{source}-group")
    commits, offsets = (True, False, True, False), (4, 9, 7, 15)
    transactions = [
        Transaction(records=one.records, commit=one.commit, offset=offset)
        for one, offset in zip(_transactions(*commits), offsets, strict=True)
    ]

    transactional.transact(zone_a, target, f"{target}-tx", transactions, of)

    assert Confluent().committed_offset(zone_b, of) == 7
    expected = _values(transactions, committed=True)
    assert Confluent().read(zone_b, target, range(PARTITIONS), committed=True) == expected


@each_client("consume: committed")
def test_each_client_reads_committed_records_and_never_aborted_ones(
    transactional: Transactional, new_topic: NewTopic, zone_a: str, zone_b: str
) -> None:
    topic = new_topic(PARTITIONS, "isolated")
    # Each transaction but the last one has records before those that the reader waits for.
    ended = _transactions(False, True, False, True, True)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": zone_a,
            "transactional.id": f"{topic}-tx",
            "transaction.timeout.ms": 600_000,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(DEADLINE_S)
    for one in ended:
        _write(producer, topic, one)
        (producer.commit_transaction if one.commit else producer.abort_transaction)(DEADLINE_S)
    _write(producer, topic, Transaction(records=_transactions(False)[0].records, commit=False))
    behind = _transactions(True)[0]
    for partition in range(PARTITIONS):
        records = [
            Sent(key=None, value=f"behind {value}".encode(), timestamp_ms=0)
            for at, value in behind.records
            if at == partition
        ]
        Plain().produce(zone_a, topic, partition, records, "none")

    committed = _values(ended, committed=True)
    assert transactional.read(zone_b, topic, _counts(committed), committed=True) == committed

    producer.abort_transaction(DEADLINE_S)
    for partition, value in behind.records:
        committed[partition].append(f"behind {value}")
    assert transactional.read(zone_b, topic, _counts(committed), committed=True) == committed
    every = Confluent().read(zone_a, topic, range(PARTITIONS), committed=False)
    assert sum(_counts(every)) == (len(ended) + 2) * 2 * PARTITIONS
    assert transactional.read(zone_b, topic, _counts(every), committed=False) == every


def _write(producer: confluent_kafka.Producer, topic: str, one: Transaction) -> None:
    producer.begin_transaction()
    for partition, value in one.records:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def _counts(values: Values) -> list[int]:
    return [len(values[partition]) for partition in range(PARTITIONS)]
