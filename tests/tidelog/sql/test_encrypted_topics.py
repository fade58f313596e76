"""`tidelog sql` and the data source over a topic with clear files, files of two keys and sealed batches."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka.admin as kafka
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType
from typer.testing import CliRunner

from pyspark_tidelog import DefaultSource
from spark_compaction.compact import compact_topics
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_source.agents import Agents
from spark_source.settings import SourceSettings
from spark_source.topic_keys import SourceKeys
from storage.identifiers import TopicId
from tests.spark_source.conftest import FIRST_MS, Topic
from tests.support.key_file import key_line
from tests.support.stack import HERE
from tests.tidelog.sql.conftest import Run, lines
from tidelog.cli import app
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment
from tidelog.sql.choose_engine import Ask, EngineChoice, SqlSession
from tidelog.sql.engine import StatementFailed
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import Statement

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
STEP = 70
IN_HISTORY, ALL = 3 * STEP, 4 * STEP
"""Record `n` of partition 0: `value-n`, or no value where 7 divides n."""
ENGINES = [EngineChoice.DUCKDB, EngineChoice.SPARK]


@pytest.fixture(scope="module")
def encryption(module_directory: Path) -> dict[str, str]:
    keys = module_directory / "keys"
    keys.write_text(key_line("first"))
    return {"TIDELOG_ENCRYPTION_PROVIDER": "file", "TIDELOG_ENCRYPTION_KEY": str(keys)}


@pytest.fixture(scope="module")
def stack(module_directory: Path, encryption: dict[str, str]) -> Iterator[Stack]:
    settings = StackSettings(
        environment=HERE, data_dir=module_directory / "stack", agents=1, agent_environment=encryption
    )
    with Stack(settings) as running:
        yield running


@pytest.fixture(scope="module")
def environment(stack: Stack, encryption: dict[str, str]) -> Environment:
    return HERE.with_variables({**stack.addresses.as_environment(), **encryption})


@pytest.fixture(scope="module")
def without_keys(stack: Stack) -> Environment:
    return HERE.with_variables(stack.addresses.as_environment())


def a_session(environment: Environment) -> SqlSession:
    """Its Spark is that of all tests, which outlives it: so it is not closed."""
    return SqlSession(environment.read(SqlSettings), lambda: environment.read(SourceSettings), lambda _: None)


def set_config(topic: Topic, name: str, value: str) -> None:
    entry = kafka.ConfigEntry(name, value, incremental_operation=kafka.AlterConfigOpType.SET)
    resource = kafka.ConfigResource("topic", topic.name, incremental_configs=[entry])
    topic.admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.fixture(scope="module")
def topic(
    new_topic: Callable[[], Topic],
    spark: None,  # noqa: ARG001 - Spark runs
    compaction: CompactionSettings,
    environment: Environment,
) -> Topic:
    """STEP records in the clear, as many of each of two keys in history, and as many in the log alone."""
    topic = new_topic()
    for step in range(4):
        if step == 1:
            set_config(topic, "tidelog.encryption", "on")
        if step == 2:
            rotated = CliRunner().invoke(app, ["keys", "rotate", topic.name], env=dict(environment.variables))
            assert rotated.exit_code == 0, rotated.output
        topic.send(range(step * STEP, (step + 1) * STEP))
        if step < 3:
            [report] = compact_topics(compaction, [topic.name]).topics
            assert not report.failed
            assert not report.waits
    return topic


@pytest.fixture(scope="module")
def plain(new_topic: Callable[[], Topic], topic: Topic, compaction: CompactionSettings) -> Topic:  # noqa: ARG001
    found = new_topic()
    found.send(range(10))
    compact_topics(compaction, [found.name])
    return found


def ask(session: SqlSession, text: str, engine: EngineChoice, *, fresh: bool = False) -> list[Any]:
    session.begin()
    run = session.ask(Statement(text=text, is_ended=True), Ask(engine=engine, fresh=fresh))
    try:
        return [tuple(row.values()) for batch in run.answer().batches for row in batch.to_pylist()]
    finally:
        run.stop()


def written(first: int, end: int) -> list[tuple[Any, ...]]:
    return [(number, None if number % 7 == 0 else f"value-{number}".encode()) for number in range(first, end)]


@pytest.mark.parametrize("fresh", [False, True], ids=["history", "fresh"])
@pytest.mark.parametrize("engine", ENGINES)
def test_both_engines_read_what_was_written(
    environment: Environment, topic: Topic, engine: EngineChoice, fresh: bool
) -> None:
    session = a_session(environment)
    text = f'SELECT "offset", value FROM topics."{topic.name}" ORDER BY 1'

    assert ask(session, text, engine, fresh=fresh) == written(0, ALL if fresh else IN_HISTORY)

    whole = f'SELECT * FROM topics."{topic.name}" WHERE "offset" = {STEP + 2}'
    [row] = ask(session, whole, engine, fresh=fresh)
    assert row[:2] == (0, STEP + 2)
    assert row[4:6] == (f"key-{STEP + 2}".encode(), f"value-{STEP + 2}".encode())
    assert row[6] == [{"key": "n", "value": str(STEP + 2).encode()}, {"key": "n", "value": None}]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("where", "count"),
    [
        (f'"offset" >= {IN_HISTORY - 5}', 5),
        ('"offset" BETWEEN 65 AND 75 AND partition = 0', 11),
        ("partition = 1", 0),
        ("timestamp >= TIMESTAMP '2023-11-14 22:13:20.200+00:00'", IN_HISTORY - 200),
        (f"CAST(value AS STRING) = 'value-{STEP + 2}'", 1),
        (f"CAST(key AS STRING) IN ('key-1', 'key-{STEP + 2}', 'key-{2 * STEP + 2}')", 3),
    ],
)
def test_filters_on_clear_and_encrypted_columns(
    environment: Environment, topic: Topic, engine: EngineChoice, where: str, count: int
) -> None:
    assert FIRST_MS == 1_700_000_000_000
    text = f'SELECT count(*) FROM topics."{topic.name}" WHERE {where}'
    assert ask(a_session(environment), text, engine) == [(count,)]


@pytest.mark.parametrize("engine", ENGINES)
def test_without_keys_the_topic_alone_fails_and_names_the_fix(
    without_keys: Environment, topic: Topic, plain: Topic, engine: EngineChoice
) -> None:
    session = a_session(without_keys)
    fix = rf"'{topic.name}' is encrypted.*TIDELOG_ENCRYPTION_PROVIDER"

    for text in ("SELECT value FROM {}", "SELECT count(value) FROM {} WHERE key IS NOT NULL"):
        with pytest.raises(StatementFailed, match=fix):
            ask(session, text.format(f'"{topic.name}"'), engine)
    with pytest.raises(StatementFailed, match=fix):
        ask(session, f'SELECT count(*) FROM "{topic.name}"', engine, fresh=True)
    assert ask(session, f'SELECT count(*) FROM "{plain.name}"', engine, fresh=True) == [(10,)]


def test_without_keys_duckdb_reads_what_is_in_the_clear_beside_other_topics(
    without_keys: Environment, topic: Topic, plain: Topic
) -> None:
    text = (
        f'SELECT count(*), max(a."offset"), min(a."timestamp") < now() FROM "{topic.name}" a '
        f'JOIN "{plain.name}" b ON a."offset" = b."offset" WHERE b.value IS NOT NULL'
    )
    assert ask(a_session(without_keys), text, EngineChoice.DUCKDB) == [(8, 9, True)]


def test_the_command_answers_as_for_other_topics(run: Run, topic: Topic) -> None:
    text = f'SELECT count(DISTINCT value) AS n FROM topics."{topic.name}" WHERE "offset" >= {2 * STEP}'
    assert lines(run("--format", "json", text)) == [{"n": 60}]


@pytest.fixture(scope="module")
def spark_of(compaction: CompactionSettings, topic: Topic) -> SparkSession:  # noqa: ARG001 - Spark runs
    return spark_session(compaction)


def options(environment: Environment, topic: Topic) -> dict[str, str]:
    settings = environment.read(SourceSettings)
    assert settings.s3_access_key is not None
    assert settings.s3_secret_key is not None
    return {
        "topic": topic.name,
        "servers": settings.http_url,
        "storeUrl": settings.store_url,
        "s3AccessKey": settings.s3_access_key,
        "s3SecretKey": settings.s3_secret_key.get_secret_value(),
        "encryptionProvider": settings.encryption_provider,
        "encryptionKey": settings.encryption_key,
    }


def test_the_data_source_reads_history_and_sealed_runs(
    spark_of: SparkSession, environment: Environment, topic: Topic
) -> None:
    frame = spark_of.read.format("tidelog").options(**options(environment, topic)).load()

    found = frame.select("offset", "value").orderBy("offset").collect()

    assert [(row.offset, None if row.value is None else bytes(row.value)) for row in found] == written(0, ALL)


def test_no_key_is_in_what_spark_shows_of_a_query(
    spark_of: SparkSession, environment: Environment, topic: Topic
) -> None:
    given = options(environment, topic)
    settings = environment.read(SourceSettings)
    ends = Agents(settings).topic(topic.name)
    pieces = [piece.object_key for piece in Agents(settings).pieces(topic.name, 0, 0, ALL)]
    keyring = SourceKeys(settings).of_topic(topic.name, TopicId(UUID(ends.topic_id)), pieces)
    assert len(keyring.by_id) == 2
    frame = spark_of.read.format("tidelog").options(**given).load().where("value IS NOT NULL")
    assert frame.count() == sum(value is not None for _, value in written(0, ALL))
    shown = frame._jdf.queryExecution().toString() + str(spark_of.sparkContext.getConf().getAll())
    tasks = DefaultSource(given).reader(StructType([StructField("value", BinaryType())])).partitions()
    shown += repr(keyring) + repr(tasks)
    for key in keyring.by_id.values():
        for text in (key._secret.hex(), base64.b64encode(key._secret).decode(), repr(key._secret)[2:-1]):
            assert text not in shown


def test_a_stream_reads_an_encrypted_topic(
    spark_of: SparkSession, environment: Environment, topic: Topic, tmp_path: Path
) -> None:
    reader = spark_of.readStream.format("tidelog").options(**options(environment, topic))
    frame = reader.option("startingOffsets", "earliest").option("columns", "offset,value").load()
    target = str(tmp_path / "rows")
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(target)
    )
    assert query.awaitTermination(300)
    assert spark_of.read.parquet(target).count() == ALL


def test_the_data_source_without_a_provider_names_the_fix(
    spark_of: SparkSession, without_keys: Environment, topic: Topic
) -> None:
    given = {key: value for key, value in options(without_keys, topic).items() if value}
    frame = spark_of.read.format("tidelog").options(**given).load()
    with pytest.raises(Exception, match=rf"'{topic.name}' is encrypted.*TIDELOG_ENCRYPTION_PROVIDER"):
        frame.select("value").collect()
    clear = {
        **given,
        "columns": "partition,offset",
        "endingOffsets": f'{{"{topic.name}": {{"0": {IN_HISTORY}}}}}',
    }
    assert spark_of.read.format("tidelog").options(**clear).load().count() == IN_HISTORY


def test_other_readers_of_iceberg_get_columns_in_the_clear_and_errors_for_others(
    spark_of: SparkSession, environment: Environment, topic: Topic
) -> None:
    """They have no keys of topics: docs/encryption.md says what they get."""
    table = f"tidelog.topics.`{topic.name}`"
    [counted] = spark_of.sql(f"SELECT count(*) AS c, max(`offset`) AS m FROM {table}").collect()
    assert (counted.c, counted.m) == (IN_HISTORY, IN_HISTORY - 1)
    with pytest.raises(Exception, match=r"(?i)decrypt|encrypt|crypto"):
        spark_of.sql(f"SELECT value FROM {table}").collect()

    settings = environment.read(SourceSettings)
    assert settings.s3_access_key is not None
    assert settings.s3_secret_key is not None
    catalog = RestCatalog(
        "tidelog",
        uri=f"{settings.http_url}/iceberg",
        **{
            "s3.access-key-id": settings.s3_access_key,
            "s3.secret-access-key": settings.s3_secret_key.get_secret_value(),
        },
    )
    scanned = catalog.load_table(("topics", topic.name))
    offsets = scanned.scan(f"offset >= {STEP}", selected_fields=("offset", "timestamp")).to_arrow()
    assert offsets.num_rows == IN_HISTORY - STEP
    with pytest.raises(OSError, match="decrypt"):
        scanned.scan(selected_fields=("value",)).to_arrow()
