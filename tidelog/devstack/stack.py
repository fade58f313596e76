"""The embedded stack: Postgres, an S3 endpoint (or a directory) and agents, as processes of this machine.

One class for `tidelog dev`, the demonstration, tests and benchmarks. Promises that the data of a directory survives
`stop` and `start`, that an agent keeps its addresses over `kill` and `restart`, that `stop` ends everything in order
(agents drain before what they drain to goes), that nothing outlives this process even if it is killed (watchdog.py),
and that two stacks never share a directory.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from tidelog.devstack.agent_process import AgentAddress, AgentProcess
from tidelog.devstack.ports import picked_ports, require_free
from tidelog.devstack.stack_file import StackAddresses, locked, remove_stack_file, write_stack_file
from tidelog.devstack.watchdog import Watchdog
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresFailed
from tidelog.embedded.s3_endpoint import EndpointFailed, S3Endpoint
from tidelog.errors import UserError
from tidelog.output import counted
from tidelog.process.environment import Environment

_AGENT_STAGE, _DATABASE_STAGE = 0, 1
_HOST = "127.0.0.1"
_BUCKET = "tidelog"
_STOP_POSTGRES_S = 10.0
_DEFAULTS = {
    # An upload to this machine takes milliseconds and costs nothing: waiting for more records would only cost latency.
    "TIDELOG_LINGER_MS": "20",
    "TIDELOG_PUT_USD_PER_MILLION": "0",
    # As in the settings of Kafka's quickstart: a first consumer gets its partitions at once.
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
_SET_HERE = frozenset({"TIDELOG_ROLES", "TIDELOG_DATABASE_URL", "TIDELOG_STORE_URL", "TIDELOG_DATA_DIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """`kafka_port` and `http_port` are agent 0's, the others' follow; 0 picks free ones.

    `environment` is the command's. Its variables reach the agents, except those that the stack sets itself;
    `agent_environment` is for the agents alone (`TIDELOG_*` settings).
    """

    environment: Environment
    data_dir: Path = Path(".tidelog")
    agents: int = 2
    zones: tuple[str, ...] = ("a", "b")
    kafka_port: int = 0
    http_port: int = 0
    store: Literal["s3", "local"] = "s3"
    database_url: str | None = None
    """A Postgres that the caller runs, migrated already; None: the stack runs its own."""
    ready_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    agent_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    url: str
    access_key: str | None
    secret_key: str | None


class Stack:
    """`with Stack(settings) as stack:` or `start` and `stop`. Not thread-safe."""

    def __init__(self, settings: StackSettings, on_step: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir.expanduser().resolve()
        self._on_step = on_step or (lambda _: None)
        self._cleanup = contextlib.ExitStack()
        self._watchdog: Watchdog | None = None
        self._addresses: StackAddresses | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._endpoint: S3Endpoint | None = None
        self.agents: list[AgentProcess] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def addresses(self) -> StackAddresses:
        """Where everything is; only of a stack that was started."""
        assert self._addresses is not None, "the stack was not started"
        return self._addresses

    @property
    def postgres(self) -> EmbeddedPostgres:
        """The database's server, which a test may stop and start; only of a started stack that runs its own."""
        assert self._postgres is not None, "the stack was not started, or runs no Postgres"
        return self._postgres

    def start(self) -> None:
        """Returns when every agent is ready; on failure nothing is left running. Raises `UserError`."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends everything this stack started, agents first. Harmless when repeated."""
        self._cleanup.close()
        self.agents = []

    def spawn(self, index: int) -> int:
        """Starts agent `index` if it does not run, without waiting for it; returns its pid."""
        pid = self.agents[index].spawn()
        assert self._watchdog is not None
        self._watchdog.watch(_AGENT_STAGE, pid)
        return pid

    def kill(self, index: int) -> None:
        """SIGKILLs agent `index`."""
        self.agents[index].kill()

    def restart(self, index: int) -> None:
        """Starts agent `index` again, at its old addresses, and waits until it is ready."""
        self.spawn(index)
        self.agents[index].wait_ready(self.settings.ready_timeout_s)

    def stop_store(self) -> None:
        """Ends the S3 endpoint, as if the store were away; `start_store` brings it back."""
        assert self._endpoint is not None, "the stack has no S3 endpoint"
        self._endpoint.stop()

    def start_store(self) -> None:
        """Starts the S3 endpoint again, at its old address and with its old keys."""
        assert self._endpoint is not None, "the stack has no S3 endpoint"
        port = int(self._endpoint.url.rsplit(":", 1)[1])
        self._start_endpoint(port=port, secret_key=self._endpoint.secret_key)

    def agent_in(self, zone: str) -> AgentProcess:
        """The first agent of a zone."""
        return next(agent for agent in self.agents if agent.address.zone == zone)

    def _start(self) -> None:
        if self.settings.agents < 1 or not self.settings.zones:
            raise UserError("A stack needs at least one agent and one zone.", "See --agents and --zones.")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._cleanup.enter_context(locked(self.data_dir))
        self._check_ports()
        store_port, *ports = self._cleanup.enter_context(picked_ports(1 + 3 * self.settings.agents))
        layout = self._plan_addresses(ports)
        watchdog = Watchdog()
        self._watchdog = watchdog
        self._cleanup.callback(watchdog.close)
        database_url = self.settings.database_url or self._start_postgres(watchdog)
        store = self._start_store(store_port)
        self._addresses = StackAddresses(
            database_url=database_url,
            store_url=store.url,
            s3_access_key=store.access_key,
            s3_secret_key=store.secret_key,
            bootstrap=",".join(address.bootstrap for address in layout),
            http_urls=tuple(address.http_url for address in layout),
            zones=self.settings.zones,
        )
        self._start_agents(layout)
        write_stack_file(self.data_dir, self._addresses)
        self._cleanup.callback(remove_stack_file, self.data_dir)

    def _check_ports(self) -> None:
        for first, option in ((self.settings.kafka_port, "--kafka-port"), (self.settings.http_port, "--http-port")):
            if first:
                require_free(range(first, first + self.settings.agents), option)

    def _plan_addresses(self, ports: Iterable[int]) -> list[AgentAddress]:
        picked = iter(ports)
        return [
            AgentAddress(
                name=f"agent-{index}",
                zone=self.settings.zones[index % len(self.settings.zones)],
                host=_HOST,
                kafka_port=self.settings.kafka_port + index if self.settings.kafka_port else next(picked),
                http_port=self.settings.http_port + index if self.settings.http_port else next(picked),
                peer_port=next(picked),
            )
            for index in range(self.settings.agents)
        ]

    def _start_postgres(self, watchdog: Watchdog) -> str:
        directory = self.data_dir / "postgres"
        is_new = not (directory / "PG_VERSION").exists()
        self._on_step("Making a database and starting Postgres" if is_new else "Starting Postgres")
        self._postgres = postgres = EmbeddedPostgres(directory)
        self._cleanup.callback(_stop_postgres, postgres)
        try:
            url = postgres.start()
        except (EmbeddedPostgresFailed, OSError) as failed:
            raise UserError(f"Postgres does not start in {directory}: {failed}") from failed
        # SIGINT is Postgres's fast shutdown: it does not wait for clients to leave.
        watchdog.watch(_DATABASE_STAGE, int((directory / "postmaster.pid").read_text().split()[0]), signal.SIGINT)
        self._on_step("Bringing the schema up to date")
        settings = self.settings.environment.read(MigrationSettings)
        with ThreadPoolExecutor(max_workers=1) as elsewhere:  # the caller's thread may run an event loop already
            elsewhere.submit(asyncio.run, migrate(url, settings)).result()
        return url

    def _start_store(self, port: int) -> _Store:
        if self.settings.store == "local":
            directory = self.data_dir / "objects"
            directory.mkdir(exist_ok=True)
            return _Store(url=directory.as_uri(), access_key=None, secret_key=None)
        self._on_step("Starting the S3 endpoint")
        endpoint = self._start_endpoint(port)
        (self.data_dir / "s3" / "buckets" / _BUCKET).mkdir(exist_ok=True)
        return _Store(url=endpoint.store_url(_BUCKET), access_key=endpoint.access_key, secret_key=endpoint.secret_key)

    def _start_endpoint(self, port: int, secret_key: str | None = None) -> S3Endpoint:
        try:
            self._endpoint = endpoint = S3Endpoint.start(self.data_dir / "s3", port=port, secret_key=secret_key)
        except (EndpointFailed, OSError) as failed:
            raise UserError(f"The S3 endpoint does not start: {failed}") from failed
        self._cleanup.callback(endpoint.stop)
        return endpoint

    def _start_agents(self, layout: list[AgentAddress]) -> None:
        zones = list(dict.fromkeys(address.zone for address in layout))
        where = f"zone{'s' * (len(zones) > 1)} {', '.join(zones)}"
        self._on_step(f"Starting {counted(len(layout), 'agent')} in {where}")
        logs = self.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        given = self.settings.environment.variables
        inherited = {name: value for name, value in given.items() if name not in _SET_HERE}
        environment = {**_DEFAULTS, **inherited, **self.addresses.as_environment(), **self.settings.agent_environment}
        self.agents = [AgentProcess(address, environment, _new_log(logs, address.name)) for address in layout]
        self._cleanup.callback(self._stop_agents)
        for index in range(len(self.agents)):
            self.spawn(index)
        for agent in self.agents:
            agent.wait_ready(self.settings.ready_timeout_s)

    def _stop_agents(self) -> None:
        for agent in self.agents:
            agent.signal(signal.SIGTERM)
        for agent in self.agents:
            if not agent.join(self.settings.drain_timeout_s):
                agent.kill()


def _stop_postgres(postgres: EmbeddedPostgres) -> None:
    """More than once if need be: a start that was interrupted leaves processes that end by themselves in a moment."""
    until = time.monotonic() + _STOP_POSTGRES_S
    while True:
        try:
            return postgres.stop()
        except EmbeddedPostgresFailed:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _new_log(logs: Path, name: str) -> Path:
    """An empty log; the one of the last start is kept beside it, older ones are not."""
    log = logs / f"{name}.log"
    if log.exists():
        log.replace(logs / f"{name}.log.1")
    return log
