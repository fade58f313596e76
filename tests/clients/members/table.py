"""Which clients are members, and what each offers: a row for each client, protocol and way of sharing out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.foreign import PROGRAMS
from tests.clients.members.process import python
from tests.support.java import Java


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`command`: how its program is started, given the Java of the fixtures. `keeps_partitions`: a rebalance
    takes from a member only what moves. `static`: the client has static members (KIP-345). `patterns`: topics
    by a regular expression, also ones that are made later. `seeks`: a member can go elsewhere in a partition.
    `foreign`: of another language, played by `make test-clients`.
    """

    client: str
    protocol: str
    strategy: str
    command: Callable[[Java], Sequence[str]]
    keeps_partitions: bool = False
    static: bool = True
    patterns: bool = True
    seeks: bool = True
    foreign: bool = False

    @property
    def name(self) -> str:
        return f"{self.client} {self.protocol if self.protocol == 'consumer' else self.strategy}"


def _java(java: Java) -> Sequence[str]:
    return java.compiled(Path(__file__).with_name("GroupMember.java")).command("GroupMember")


def _foreign(client: str, strategy: str, **offers: bool) -> Variant:
    """A client of another language. Its command raises `ToolchainAbsent`."""

    def command(_: Java) -> Sequence[str]:
        PROGRAMS[client].make()
        return PROGRAMS[client].command

    protocol = "consumer" if strategy == "uniform" else "classic"
    keeps = strategy in ("uniform", "cooperative")
    return Variant(
        client=client,
        protocol=protocol,
        strategy=strategy,
        command=command,
        keeps_partitions=keeps,
        foreign=True,
        **offers,
    )


def _python(module: str) -> Callable[[Java], Sequence[str]]:
    return lambda _: python(module)


VARIANTS = (
    Variant(client="confluent-kafka", protocol="classic", strategy="range", command=_python("confluent")),
    Variant(
        client="confluent-kafka",
        protocol="classic",
        strategy="cooperative",
        command=_python("confluent"),
        keeps_partitions=True,
    ),
    Variant(
        client="confluent-kafka",
        protocol="consumer",
        strategy="uniform",
        command=_python("confluent"),
        keeps_partitions=True,
    ),
    Variant(client="aiokafka", protocol="classic", strategy="roundrobin", command=_python("aio")),
    Variant(
        client="kafka-python",
        protocol="classic",
        strategy="range",
        command=_python("kafka_python"),
        patterns=False,
    ),
    Variant(
        client="kafka-python",
        protocol="classic",
        strategy="cooperative",
        command=_python("kafka_python"),
        keeps_partitions=True,
        patterns=False,
    ),
    Variant(client="kafka-clients", protocol="classic", strategy="range", command=_java),
    Variant(
        client="kafka-clients",
        protocol="classic",
        strategy="cooperative",
        command=_java,
        keeps_partitions=True,
    ),
    Variant(
        client="kafka-clients", protocol="consumer", strategy="uniform", command=_java, keeps_partitions=True
    ),
    _foreign("franz-go", "range"),
    _foreign("franz-go", "cooperative"),
    # It says that a static member of the new protocol leaves for a while without saying which: refused, as by
    # Kafka.
    _foreign("franz-go", "uniform", static=False),
    _foreign("sarama", "range", patterns=False, seeks=False),
    _foreign("sarama", "cooperative", patterns=False, seeks=False),
    _foreign("segmentio/kafka-go", "range", static=False, patterns=False),
    _foreign("kafkajs", "roundrobin", static=False, patterns=False),
    _foreign("rust-rdkafka", "range"),
    _foreign("rust-rdkafka", "cooperative"),
    _foreign("rust-rdkafka", "uniform"),
)
