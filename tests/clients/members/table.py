"""Which clients are members, and what each offers: a row for each client, protocol and way of sharing out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.members.process import python
from tests.fixtures.java import JVM_OPTIONS, Java


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`command`: how its program is started, given the Java of the fixtures. `keeps_partitions`: a rebalance takes from
    a member only what moves. `static`: the client has static members (KIP-345). `patterns`: topics by a regular
    expression, also ones that are made later."""

    client: str
    protocol: str
    strategy: str
    command: Callable[[Java], Sequence[str]]
    keeps_partitions: bool = False
    static: bool = True
    patterns: bool = True

    @property
    def name(self) -> str:
        return f"{self.client} {self.protocol if self.protocol == 'consumer' else self.strategy}"


def _java(java: Java) -> Sequence[str]:
    compiled = java.compiled(Path(__file__).with_name("GroupMember.java"))
    return ["java", *JVM_OPTIONS, "-cp", compiled.classpath, "GroupMember"]


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
        client="kafka-python", protocol="classic", strategy="range", command=_python("kafka_python"), patterns=False
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
    Variant(client="kafka-clients", protocol="classic", strategy="cooperative", command=_java, keeps_partitions=True),
    Variant(client="kafka-clients", protocol="consumer", strategy="uniform", command=_java, keeps_partitions=True),
)
