"""What each client was seen to do: the features of `docs/clients.md`, and how a test names those that it
shows.

A test names the client and the features that it shows:

    @tried("confluent-kafka", "group: cooperative, partitions kept")
    def test_members_keep_their_partitions(...) -> None: ...

or, made for several clients, its parameter carries the mark: `pytest.param(..., marks=tried("aiokafka",
...))`.

A feature holds for a client if every test that names both passed. The client's version is that of its Python
distribution or its jar; a fixture of any other says it once: `matrix.note_version("franz-go", "1.22.2")`,
with the fixture `matrix`. What a client does not offer stands in `not_offered.py`, with the evidence.

A new client is a line of `CLIENTS`. Every client has a row for each of its features: tried, or not offered.
The page is written by `make clients-document`, and `test_matrix.py` holds it to these lists.
"""

from dataclasses import dataclass

import pytest

FEATURES = (
    "produce: every compression",
    "produce: idempotent",
    "produce: acks 0, 1 and all",
    "consume: assigned partitions",
    "consume: as a group",
    "consume: committed",
    "transactions: produce",
    "transactions: offsets",
    "group: members join and leave",
    "group: a member dies",
    "group: cooperative, partitions kept",
    "group: static membership",
    "group: the new protocol (KIP-848)",
    "group: changes between protocols while it runs",
    "group: topics by regular expression",
    "offsets: commit and fetch",
    "offsets: commit without membership",
    "offsets: seek",
    "offsets: reset",
    "offsets: by time",
    "admin: create, describe, grow, delete topics",
    "admin: configs",
    "admin: delete records",
    "admin: list and describe groups",
    "admin: delete groups",
    "admin: delete offsets of groups",
    "admin: describe cluster",
    "TLS",
    "TLS: a client certificate",
    "login: PLAIN, with and without TLS",
    "login: SCRAM-SHA-256, with and without TLS",
    "login: SCRAM-SHA-512, with and without TLS",
    "login: OAUTHBEARER, with and without TLS",
    "login: a wrong password is refused",
    "login: again on a connection (KIP-368)",
)
"""What is asked of each, in the page's order."""
STREAMS = (
    "stores restored from compacted changelogs",
    "windowed stores",
    "standby replicas",
    "repartition topics, records deleted",
    "an instance dies",
    "an agent dies",
    "exactly once",
    "application reset",
    "the streams rebalance protocol (KIP-1071)",
    "exactly once in a streams group",
)
"""What is asked of Kafka Streams, which is a library over the Java client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client of the matrix. `features` are its rows."""

    name: str
    language: str
    features: tuple[str, ...] = FEATURES


CLIENTS = {
    client.name: client
    for client in (
        Client(name="confluent-kafka", language="Python, over librdkafka"),
        Client(name="aiokafka", language="Python"),
        Client(name="kafka-python", language="Python"),
        Client(name="kafka-clients", language="Java"),
        Client(name="kafka-streams", language="Java", features=STREAMS),
        Client(name="franz-go", language="Go"),
        Client(name="sarama", language="Go"),
        Client(name="segmentio/kafka-go", language="Go"),
        Client(name="kafkajs", language="JavaScript"),
        Client(name="rust-rdkafka", language="Rust"),
        Client(
            name="kafka-connect",
            language="Java",
            features=(
                "creates its compacted topics",
                "file source and sink",
                "an agent dies",
                "a worker leaves",
                "exactly-once sources",
            ),
        ),
        Client(
            name="debezium",
            language="Java",
            features=("changes of Postgres, exactly once", "an agent dies", "a worker dies"),
        ),
        Client(
            name="flink",
            language="Java",
            features=(
                "source: committed records",
                "source: offsets of its group",
                "sink: exactly once",
                "a task fails",
                "its process dies before it commits",
                "an agent dies",
            ),
        ),
        Client(
            name="mirror-maker",
            language="Java",
            features=("records", "configs of topics", "offsets of groups", "an agent dies"),
        ),
        Client(
            name="apicurio-registry",
            language="Java",
            features=(
                "keeps its schemas in a topic",
                "Avro of confluent-kafka",
                "a restart",
                "an agent dies",
            ),
        ),
    )
}


def tried(client: str, *features: str) -> pytest.MarkDecorator:
    """Marks a test as showing these features of a client. Raises `ValueError` for a name unknown to the
    page.
    """
    if client not in CLIENTS:
        raise ValueError(f"{client!r} is no client of the matrix: {list(CLIENTS)}")
    for feature in features:
        if feature not in CLIENTS[client].features:
            raise ValueError(f"{feature!r} is no feature of {client}: {CLIENTS[client].features}")
    return pytest.mark.tried(client, features)


PASSED, FAILED, NOT_RUN, NOT_OFFERED = "passed", "FAILED", "NOT RUN", "not offered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`evidence` are the tests, or what says that the client does not offer it."""

    client: str
    feature: str
    result: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`docs/clients.md`. If its run was of a part, `kept` is the commit of all rows but those of `again`."""

    commit: str
    kept: str
    again: tuple[str, ...]
    versions: dict[str, str]
    rows: tuple[Row, ...]

    def text(self) -> str:
        """In Markdown; `parse_rows` is the inverse of its tables."""
        clients = [
            client for client in CLIENTS.values() if any(row.client == client.name for row in self.rows)
        ]
        lines = [
            "# Clients",
            "",
            (
                "What each client was seen to do against two agents in two zones, through its own public "
                "interface."
            ),
            "`make clients-document` writes this page from the results of the tests in `tests/clients`.",
            "",
            f"Commit: `{self.kept or self.commit}`."
            + (f" At `{self.commit}`: {'; '.join(self.again)}." if self.kept else ""),
            "",
        ]
        for client in clients:
            lines += [
                f"## {client.name} {self.versions.get(client.name, '')} ({client.language})".replace(
                    "  ", " "
                ),
                "",
            ]
            lines += ["| what | result | evidence |", "|---|---|---|"]
            lines += [f"| {row.feature} | {row.result} | {row.evidence} |" for row in self.rows_of(client)]
            lines.append("")
        return "\n".join(lines)

    def rows_of(self, client: Client) -> list[Row]:
        """In the order of its features."""
        found = {row.feature: row for row in self.rows if row.client == client.name}
        return [found[feature] for feature in client.features if feature in found]


def parse_rows(text: str) -> list[Row]:
    """The rows of a page."""
    rows, client = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            client = line[3:].split(" ", 1)[0]
        elif line.startswith("| ") and not line.startswith("| what |"):
            feature, result, evidence = (cell.strip() for cell in line.strip("|").split("|"))
            rows.append(Row(client=client, feature=feature, result=result, evidence=evidence))
    return rows
