"""A cluster whose database tests destroy, back up and set back, over a bucket that outlives it.

Promises that the database, wherever it comes from, is found at one URL, so that agents and clients go on when
it is back; and that everything ends with the context.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pydantic import SecretStr

from compactor.diagnosis import Diagnosis
from compactor.doctor import DoctorSettings, examine
from recovery.recover import Task, recover, rehearse
from recovery.report import Report
from recovery.settings import RecoverySettings
from sequencer.client import Sequencer
from sequencer.settings import MigrationSettings, SequencerSettings
from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tidelog.devstack.ports import picked_ports
from tidelog.devstack.stack import AgentEndpoints, AgentProcess
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings
from tidelog.embedded.s3_endpoint import S3Endpoint

CLUSTER = "tidelog"
RATCHET_S = 1.0
QUICK: Mapping[str, str] = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "4",
    "TIDELOG_MEMBERSHIP_RENEW_S": "0.5",
    "TIDELOG_MEMBERSHIP_MARGIN_S": "0.5",
    "TIDELOG_OWNERSHIP_RATCHET_S": str(RATCHET_S),
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
    "TIDELOG_LINGER_MS": "20",
    "TIDELOG_JOURNAL_INTERVAL_S": "0.5",
    "TIDELOG_MERGE_SETTLE_S": "0.2",
    "TIDELOG_MERGE_TARGET_S": "0.5",
    "TIDELOG_MERGE_FAN_IN": "4",
    "TIDELOG_MERGE_INTERVAL_S": "0.2",
    "TIDELOG_OBSERVATION_INTERVAL_S": "0.2",
    "TIDELOG_JOB_RETRY_S": "0.2",
}
_READY_TIMEOUT_S = 60.0
_DRAIN_S = 20.0


@dataclass(kw_only=True)
class Site:
    """Not thread-safe; several may be at work at once."""

    directory: Path
    template: Path
    """The data of an empty Postgres, which is copied."""
    endpoint: S3Endpoint
    prefix: str
    agent_count: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    agents: list[AgentProcess] = field(default_factory=list)
    _exits: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Site":
        self.directory.mkdir(parents=True)
        self._exits.callback(self.end_postgres)
        self.start_postgres(self.template)
        ports = self._exits.enter_context(picked_ports(3 * self.agent_count))
        for index in range(self.agent_count):
            kafka_port, http_port, peer_port = ports[3 * index : 3 * index + 3]
            address = AgentEndpoints(
                name=f"agent-{index}",
                zone="ab"[index % 2],
                host="127.0.0.1",
                kafka_port=kafka_port,
                http_port=http_port,
                peer_port=peer_port,
            )
            variables = {**os.environ, **QUICK, **self.variables, **self.environment}
            self.agents.append(AgentProcess(address, variables, self.directory / f"{address.name}.log"))
        self._exits.callback(self.kill_agents)
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment."""
        return {
            "TIDELOG_DATABASE_URL": self.database_url,
            "TIDELOG_STORE_URL": self.store_url,
            "TIDELOG_S3_ACCESS_KEY": self.endpoint.access_key,
            "TIDELOG_S3_SECRET_KEY": self.endpoint.secret_key,
        }

    @property
    def database_url(self) -> str:
        return self._server().url()

    @property
    def store_url(self) -> str:
        return self.endpoint.store_url("drills", self.prefix)

    @property
    def bootstrap(self) -> str:
        return ",".join(agent.address.bootstrap for agent in self.agents)

    def _server(self) -> EmbeddedPostgres:
        return EmbeddedPostgres(self._data, EmbeddedPostgresSettings(durable=False, shared_buffers_mib=16))

    @property
    def _data(self) -> Path:
        return self.directory / "pg"

    # --- the database

    def start_postgres(self, data: Path) -> None:
        """With a copy of this data."""
        copy_data(data, self._data)
        self._server().start()

    def end_postgres(self) -> None:
        """SIGKILL for every process of the server; its data is gone."""
        pid_file = self._data / "postmaster.pid"
        if pid_file.exists():
            with_children = _family(int(pid_file.read_text().split()[0]))
            for process in with_children:
                _kill(process)
            psutil.wait_procs(with_children, timeout=20)
        shutil.rmtree(self._data, ignore_errors=True)

    def back_up(self, name: str) -> Path:
        """The data as it is on a server that was stopped for a moment; agents reconnect."""
        backup = self.directory / f"backup-{name}"
        server = self._server()
        server.stop()
        copy_data(self._data, backup)
        server.start()
        return backup

    # --- the agents

    def start_agents(self) -> None:
        for agent in self.agents:
            agent.spawn()
        for agent in self.agents:
            agent.wait_ready(_READY_TIMEOUT_S)

    def kill_agents(self) -> None:
        for agent in self.agents:
            agent.kill()

    def stop_agents(self) -> None:
        for agent in self.agents:
            agent.signal(signal.SIGTERM)
        for agent in self.agents:
            if not agent.join(_DRAIN_S):
                agent.kill()

    # --- the tools

    def recover(self, **settings: Any) -> Report:
        return asyncio.run(self._recover(rehearses=False, settings=settings))

    def rehearse(self, **settings: Any) -> Report:
        return asyncio.run(self._recover(rehearses=True, settings=settings))

    async def _recover(self, *, rehearses: bool, settings: Mapping[str, float]) -> Report:
        chosen = RecoverySettings.model_validate({"ownership_ratchet_s": RATCHET_S, **settings})
        task = Task(
            database_url=self.database_url,
            store_url=self.store_url,
            cluster=CLUSTER,
            take_over=True,
            settings=chosen,
            store_settings=self._store_settings(),
            sequencer_settings=SequencerSettings(),
            migration_settings=MigrationSettings(),
        )
        async with self.store() as store:
            return await (rehearse if rehearses else recover)(task, store)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`tidelog <arguments>` as an operator runs it."""
        environment = {**os.environ, **QUICK, **self.variables, **self.environment, "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", "tidelog", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def diagnosis(self) -> Diagnosis:
        return asyncio.run(self._diagnosis())

    async def _diagnosis(self) -> Diagnosis:
        sequencer = await Sequencer.open(self.database_url, SequencerSettings())
        try:
            async with self.store() as store:
                return await examine(
                    sequencer, store, CLUSTER, verify_contents=True, settings=DoctorSettings()
                )
        finally:
            await sequencer.close()

    def wait_until_healthy(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not (found := self.diagnosis()).is_healthy:
            assert time.monotonic() < until, found.summary()
            time.sleep(0.5)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[ObjectStore]:
        opened = await open_store(self.store_url, self._store_settings())
        try:
            yield opened
        finally:
            await opened.close()

    def _store_settings(self) -> StoreSettings:
        return StoreSettings(
            s3_access_key=self.endpoint.access_key, s3_secret_key=SecretStr(self.endpoint.secret_key)
        )

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def empty_template(directory: Path) -> Iterator[Path]:
    """The data of a Postgres that was never used, and has stopped."""
    server = EmbeddedPostgres(directory / "template", EmbeddedPostgresSettings(durable=False))
    server.start()
    server.stop()
    yield directory / "template"


def copy_data(old: Path, new: Path) -> None:
    """Owners and modes are kept, as Postgres demands."""
    subprocess.run(["cp", "-a", str(old), str(new)], check=True, timeout=60)
    for left in ("postmaster.pid", "server.log"):
        (new / left).unlink(missing_ok=True)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
