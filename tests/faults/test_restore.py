"""Backups of several ages are restored while the bucket went on: within the horizon nothing is lost, beyond
it what still exists comes back at its offset and the rest is listed.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest

from recovery.plan import Source
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from tests.faults.conftest import create_topic
from tests.faults.site import CLUSTER, Site, empty_template
from tests.support.directories import new_directory
from tests.support.messages import place_of
from tidelog.embedded.s3_endpoint import S3Endpoint

OLD, NEW = 80, 30
DEADLINE_S = 90.0
QUICK_GARBAGE: Mapping[str, str] = {
    "TIDELOG_GARBAGE_GRACE_S": "3",
    "TIDELOG_GARBAGE_INTERVAL_S": "0.2",
    "TIDELOG_DOOMING_INTERVAL_S": "0.2",
    "TIDELOG_COORDINATE_MAX_AGE_S": "1",
    "TIDELOG_RESERVATION_LEASE_S": "5",
    "TIDELOG_CHECKPOINT_INTERVAL_S": "2",
}
WITHIN: Mapping[str, str] = {"TIDELOG_RESTORE_HORIZON_S": "3600"}
BEYOND: Mapping[str, str] = {"TIDELOG_RESTORE_HORIZON_S": "4"}

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with new_directory("restore") as directory:
        (directory / "s3" / "buckets" / "drills").mkdir(parents=True)
        yield directory


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[S3Endpoint]:
    with S3Endpoint.start(folder / "s3") as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def template(folder: Path) -> Iterator[Path]:
    with empty_template(folder) as data:
        yield data


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "environment", "keeps_journal"),
    [
        ("within the horizon, with the journal", WITHIN, True),
        ("within the horizon, without a journal", WITHIN, False),
        ("beyond the horizon, with the journal", BEYOND, True),
        ("beyond the horizon, without a journal", BEYOND, False),
    ],
)
def test_a_restored_backup_has_every_record_that_still_exists(
    folder: Path,
    endpoint: S3Endpoint,
    template: Path,
    name: str,
    environment: Mapping[str, str],
    keeps_journal: bool,
) -> None:
    place = name.replace(" ", "-").replace(",", "")
    with Site(
        directory=folder / place,
        template=template,
        endpoint=endpoint,
        prefix=place,
        agent_count=1,
        environment={**QUICK_GARBAGE, **environment},
    ) as site:
        asyncio.run(migrate(site.database_url, MigrationSettings()))
        site.start_agents()
        topic = create_topic(site.bootstrap, 1)
        _produce(site, topic, range(OLD))
        backup = site.back_up("old")
        _produce(site, topic, range(OLD, OLD + NEW))
        _wait_until_merged(site, deleted=environment is BEYOND)
        _produce(site, topic, range(OLD + NEW, OLD + NEW + 5))
        time.sleep(1.0)  # an entry of the journal
        site.end_postgres()
        site.kill_agents()
        if not keeps_journal:
            asyncio.run(_delete_journal(site))

        site.start_postgres(backup)
        missing = 0 if keeps_journal else asyncio.run(_missing(site))
        said = site.command("recover", "--take-over", "--yes")
        print(f"{name}: {missing} objects of the backup were missing\n{said.stdout}", flush=True)
        assert said.returncode == 0, said.stderr
        site.start_agents()

        assert (missing >= 64) == (environment is BEYOND and not keeps_journal)
        assert ("the bucket's journal" if keeps_journal else Source.DATABASE.value) in said.stdout
        values = _read(site, topic)
        records = [b"%d" % number for number in range(OLD + NEW + 5)]
        assert values[: OLD + (NEW if keeps_journal else 0)] == records[: OLD + (NEW if keeps_journal else 0)]
        assert sorted(values, key=int) == records
        _produce(site, topic, range(1000, 1003))
        assert _read(site, topic)[-3:] == [b"1000", b"1001", b"1002"]
        site.wait_until_healthy(DEADLINE_S)


def _produce(site: Site, topic: str, numbers: range) -> None:
    """Each record is a segment."""
    client = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap, "log_level": 0, "linger.ms": 0})
    failures: list[object] = []
    for number in numbers:
        client.produce(
            topic, b"%d" % number, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
        client.flush(DEADLINE_S)
    assert failures == [None] * len(numbers)


def _wait_until_merged(site: Site, *, deleted: bool) -> None:
    statement = (
        "SELECT count(*) FROM tombstones"
        if deleted
        else "SELECT count(*) FROM segments AS s WHERE state = 'committed'"
        " AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id)"
    )
    until = time.monotonic() + DEADLINE_S
    while (found := site.sql(statement)) < [(64,)]:
        assert time.monotonic() < until, (
            f"only {found} were merged: {site.sql('SELECT name, last_error FROM jobs')}"
        )
        time.sleep(0.2)


async def _delete_journal(site: Site) -> None:
    async with site.store() as store:
        for folder in ("journal", "checkpoints"):
            await store.delete([info.key async for info in store.list(f"{CLUSTER}/{folder}/")])


async def _missing(site: Site) -> int:
    """Objects that the backup refers to and the bucket has not: one blocks its partition's readers for
    ever.
    """
    keys = {str(key) for (key,) in site.sql("SELECT object_key FROM segments JOIN runs USING (segment_id)")}
    async with site.store() as store:
        there = {info.key async for info in store.list(f"{CLUSTER}/")}
    return len(keys - there)


def _read(site: Site, topic: str) -> list[bytes]:
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    part = confluent_kafka.TopicPartition(topic, 0, 0)
    end = client.get_watermark_offsets(part, timeout=30)[1]
    client.assign([part])
    values: list[bytes] = []
    reached, until = 0, time.monotonic() + DEADLINE_S
    while reached < end:
        assert time.monotonic() < until, f"a consumer stands at {reached} of {end}"
        for message in client.consume(500, timeout=0.5):
            if message.error() is None:
                values.append(bytes(message.value() or b""))
                reached = place_of(message)[1] + 1
    client.close()
    return values
