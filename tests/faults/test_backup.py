"""The restore drill: Postgres is backed up while clients work, then its disk is gone. The backup brings back
what was archived, `tidelog recover` what came after.
"""

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka
import psycopg
import pytest

from tests.faults.conftest import LEASES, create_topic, wait_until_doctor_finds_nothing
from tests.faults.ledger import Contents, Ledger, Place, Record
from tests.faults.load import Load, LoadSettings
from tests.support.messages import place_of, value_of
from tests.support.seeds import seeds
from tidelog.devstack.stack import Stack
from tidelog.embedded.postgres import SYSTEM_USER

PARTITIONS = 4
PATIENCE_S = 90.0
QUICK_RATCHETS = {"TIDELOG_OWNERSHIP_RATCHET_S": "2"}
QUICK_ANSWERS = {"message.timeout.ms": 5_000, "request.timeout.ms": 2_000, "delivery.timeout.ms": 5_000}

pytestmark = pytest.mark.faults


def tidelog(stack: Stack, *arguments: str) -> str:
    """The output of the command."""
    command = [sys.executable, "-m", "tidelog", *arguments]
    environment = {**os.environ, **stack.addresses.as_environment(), **QUICK_RATCHETS}
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert said.returncode == 0, f"{said.stdout}\n{said.stderr}"
    return said.stdout


def archive_what_is_committed(stack: Stack) -> None:
    """Returns when every commit until now is in the bucket."""
    with psycopg.connect(stack.postgres.url(), autocommit=True) as connection:
        found = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()
        assert found is not None
        until = time.monotonic() + PATIENCE_S
        while not (connection.execute(_IS_ARCHIVED, found).fetchone() or (False,))[0]:
            assert time.monotonic() < until, f"{found[0]} is not archived"
            time.sleep(0.05)


_IS_ARCHIVED = "SELECT coalesce(last_archived_wal, '') >= %s FROM pg_stat_archiver"


def lose_the_database(stack: Stack, data: Path) -> None:
    """Kills all agents and Postgres, and leaves an empty directory in place of its data."""
    for index in range(len(stack.agents)):
        stack.kill(index)
    stack.postgres.kill()
    shutil.rmtree(data)
    data.mkdir()
    if os.geteuid() == 0:
        owner = pwd.getpwnam(SYSTEM_USER)
        os.chown(data, owner.pw_uid, owner.pw_gid)


def wait_until_open(stack: Stack) -> None:
    """Returns when Postgres has replayed its WAL."""
    until = time.monotonic() + PATIENCE_S
    with psycopg.connect(stack.postgres.url(), autocommit=True) as connection:
        while (connection.execute("SELECT pg_is_in_recovery()").fetchone() or (True,))[0]:
            assert time.monotonic() < until, "Postgres still replays"
            time.sleep(0.05)


def read(servers: str, topic: str) -> dict[tuple[int, int], list[Place]]:
    """The place of each record of a producer's sequence."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        partitions = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = {
            each.partition: consumer.get_watermark_offsets(each, timeout=PATIENCE_S)[1] for each in partitions
        }
        consumer.assign(partitions)
        found: dict[tuple[int, int], list[Place]] = {}
        until = time.monotonic() + PATIENCE_S
        while any(each.offset < ends[each.partition] for each in consumer.position(partitions)):
            assert time.monotonic() < until, f"read {sum(map(len, found.values()))} records, ends {ends}"
            for message in consumer.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                record = Record(key=message.key(), value=value_of(message), headers=(), timestamp_ms=0)
                found.setdefault(Contents.identify(record), []).append(place_of(message))
        return found
    finally:
        consumer.close()


def wrong(
    acknowledged: Mapping[tuple[int, int], Place], found: Mapping[tuple[int, int], list[Place]]
) -> list[str]:
    return [f"{name}: {place}, read at {found.get(name)}" for name, place in acknowledged.items()
            if found.get(name) != [place]]  # fmt: skip


def test_a_database_that_is_lost_is_back_from_its_backup(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(agents=2, agent_environment={**LEASES, **QUICK_RATCHETS})
    data = stack.data_dir / "postgres"
    tidelog(stack, "backup", "configure", "--apply")
    stack.postgres.stop()
    stack.postgres.start()
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
    settings = LoadSettings(
        servers=stack.addresses.bootstrap, topic=topic, records_per_s=200.0, client_settings=QUICK_ANSWERS
    )
    with Load(settings, ledger) as load:
        load.wait_for_acknowledgements(50, PATIENCE_S)
        began_s = time.monotonic()
        tidelog(stack, "backup", "run")
        backed_up_s = time.monotonic() - began_s
        load.wait_for_acknowledgements(50, PATIENCE_S)
        durable = ledger.places()
        archive_what_is_committed(stack)
        load.wait_for_acknowledgements(20, PATIENCE_S)
        lose_the_database(stack, data)

    began_s = time.monotonic()
    tidelog(stack, "backup", "restore", "--to", str(data))
    unpacked_s = time.monotonic() - began_s
    stack.postgres.start()
    wait_until_open(stack)
    open_s = time.monotonic() - began_s
    tidelog(stack, "recover", "--take-over", "--yes")
    recovered_s = time.monotonic() - began_s
    for index in range(len(stack.agents)):
        stack.restart(index)
    found = read(stack.addresses.bootstrap, topic)

    print(
        f"{len(durable):,} records acknowledged before the last archived WAL; base backup "
        f"{backed_up_s:.1f} s,"
        f" restored in {unpacked_s:.1f} s, open after {open_s:.1f} s, recovered after {recovered_s:.1f} s,"
        f" agents after {time.monotonic() - began_s:.1f} s;"
        f" {len(ledger.places()) - len(durable):,} records acknowledged since"
    )
    assert len(durable) >= 300
    assert wrong(durable, found) == []
    assert [name for name in ledger.places() if len(found.get(name, ())) != 1] == [], (
        "younger than the backup"
    )
    wait_until_doctor_finds_nothing(stack, timeout_s=120.0)
