"""The embedded stack: Postgres, an S3 endpoint (or a directory), agents and, if asked for, the history
service, as processes of this machine.

`tidelog dev`, the demonstration, tests and benchmarks use this class.

Promises:
- The data of a directory survives `stop` and `start`. Two stacks never share a directory.
- An agent keeps its addresses over `kill` and `restart`. Its log is appended to one file.
- `start` either returns with all agents ready or says why one is not, with the end of its log.
- `stop` ends everything in order: agents drain before Postgres and the store stop. No child outlives this
  process, even if it is killed (watchdog.py).
- A child never imports from the directory in which the command runs (`python -P`): it may have a folder
  `agent`.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx

from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings
from tidelog.devstack.ports import picked_ports, require_free
from tidelog.devstack.stack_file import StackAddresses, locked, remove_stack_file, write_stack_file
from tidelog.devstack.watchdog import Watchdog
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresFailed
from tidelog.embedded.s3_endpoint import EndpointFailed, S3Endpoint
from tidelog.errors import UserError
from tidelog.output import counted
from tidelog.process.environment import Environment

_POLL_S = 0.1
_LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoints:
    """The addresses of one agent of the stack."""

    name: str
    zone: str
    host: str
    kafka_port: int
    http_port: int
    peer_port: int

    @property
    def bootstrap(self) -> str:
        """The value for a Kafka client's `bootstrap.servers`."""
        return f"{self.host}:{self.kafka_port}"

    @property
    def http_url(self) -> str:
        """Health, metrics and /v1."""
        return f"http://{self.host}:{self.http_port}"


class ChildProcess:
    """A Tidelog command that can be killed and started again. It has one log file."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The running child's pid."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the last child. Negative: a signal. None while it runs."""
        return None if self._process is None else self._process.poll()

    def spawn(self) -> int:
        """Starts the child and returns its pid at once. The child may need seconds until it is ready."""
        if self.pid is not None:
            return self.pid
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidelog", *self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the stack, which ends its children in order
            )
        return self._process.pid

    def kill(self) -> None:
        """Sends SIGKILL, to act like a lost machine."""
        self.signal(signal.SIGKILL)
        self.join(timeout_s=10.0)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to a running child."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def join(self, timeout_s: float) -> bool:
        """Waits for the child's end. Returns False if it still runs."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self) -> str:
        """The end of the log, for a message."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except OSError:
            return f"No log at {self.log_file}."
        return "\n".join(
            [f"The end of {self.log_file}:", *(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])]
        )


class AgentProcess(ChildProcess):
    """An agent, always at the same address."""

    def __init__(self, address: AgentEndpoints, environment: Mapping[str, str], log_file: Path) -> None:
        super().__init__(address.name, ["agent"], {**environment, **_variables(address)}, log_file)
        self.address = address

    def wait_ready(self, timeout_s: float) -> None:
        """Returns when `/ready` says yes. Raises `UserError` with the reason if it does not in time."""
        until = time.monotonic() + timeout_s
        reason = "it did not answer"
        # Without certificates: reading the system's for each request would cost more CPU than the agent's
        # start.
        with httpx.Client(verify=False, timeout=2.0) as client:
            while time.monotonic() < until:
                if self.pid is None:
                    raise UserError(
                        f"Agent {self.address.name} ended with status {self.exit_status}.\n{self.tail()}"
                    )
                try:
                    answer = client.get(f"{self.address.http_url}/ready")
                except httpx.TransportError as error:
                    reason = str(error)
                else:
                    if answer.status_code == 200:
                        return
                    reason = answer.text
                time.sleep(_POLL_S)
        raise UserError(
            f"Agent {self.address.name} was not ready in {timeout_s:.0f} s: {reason}\n{self.tail()}"
        )


def _variables(address: AgentEndpoints) -> dict[str, str]:
    return {
        "TIDELOG_ZONE": address.zone,
        "TIDELOG_KAFKA_HOST": address.host,
        "TIDELOG_KAFKA_PORT": str(address.kafka_port),
        "TIDELOG_ADVERTISED_HOST": address.host,
        "TIDELOG_ADVERTISED_PORT": str(address.kafka_port),
        "TIDELOG_HTTP_HOST": address.host,
        "TIDELOG_HTTP_PORT": str(address.http_port),
        "TIDELOG_PEER_HOST": address.host,
        "TIDELOG_PEER_PORT": str(address.peer_port),
        "PYTHONUNBUFFERED": "1",
    }


_AGENT_STAGE, _DATABASE_STAGE = 0, 1
_HOST = "127.0.0.1"
_BUCKET = "tidelog"
_STOP_POSTGRES_S = 10.0
_DEFAULTS = {
    # An upload to this machine takes milliseconds and costs nothing, so waiting for more records would only
    # cost latency.
    "TIDELOG_LINGER_MS": "20",
    "TIDELOG_PUT_USD_PER_MILLION": "0",
    # As in the settings of Kafka's quickstart: a first consumer gets its partitions at once.
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
_SET_HERE = frozenset({"TIDELOG_ROLES", "TIDELOG_DATABASE_URL", "TIDELOG_STORE_URL", "TIDELOG_DATA_DIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """`kafka_port` and `http_port` are agent 0's. Those of the other agents follow. 0 picks free ports.

    `environment` is the command's. Its variables reach the agents, except those that the stack sets itself.
    `agent_environment` has `TIDELOG_*` settings that only the agents get.
    """

    environment: Environment
    data_dir: Path = Path(".tidelog")
    agents: int = 2
    zones: tuple[str, ...] = ("a", "b")
    kafka_port: int = 0
    http_port: int = 0
    store: Literal["s3", "local"] = "s3"
    database_url: str | None = None
    """A Postgres that the caller runs, already migrated. None: the stack runs its own."""
    ready_timeout_s: float = 240.0
    """The first start after an installation compiles bytecode and native kernels: a minute of CPU."""
    drain_timeout_s: float = 30.0
    agent_environment: Mapping[str, str] = field(default_factory=dict)
    history: bool = False
    """Also run the service that keeps the topics' tables fresh. It needs the extra `history` and Java."""


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
        self.history: ChildProcess | None = None
        """`tidelog history run`, if the settings ask for it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def addresses(self) -> StackAddresses:
        """Where everything is. Raises if the stack was not started."""
        assert self._addresses is not None, "the stack was not started"
        return self._addresses

    @property
    def postgres(self) -> EmbeddedPostgres:
        """The database's server, which a test may stop and start. Raises if the stack was not started or does
        not run its own.
        """
        assert self._postgres is not None, "the stack was not started, or runs no Postgres"
        return self._postgres

    def start(self) -> None:
        """Returns when every agent is ready. Raises `UserError`; then nothing is left running."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends everything that this stack started, agents first. May be called again."""
        self._cleanup.close()
        self.agents, self.history = [], None

    @property
    def children(self) -> list[ChildProcess]:
        """The agents, and the history service if there is one."""
        return [*self.agents, *([] if self.history is None else [self.history])]

    def spawn(self, index: int) -> int:
        """Starts child `index` if it does not run, and returns its pid without waiting. Agents come first."""
        pid = self.children[index].spawn()
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
        """Ends the S3 endpoint, as if the store were away. `start_store` starts it again."""
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
        for first, option in (
            (self.settings.kafka_port, "--kafka-port"),
            (self.settings.http_port, "--http-port"),
        ):
            if first:
                require_free(range(first, first + self.settings.agents), option)

    def _plan_addresses(self, ports: Iterable[int]) -> list[AgentEndpoints]:
        picked = iter(ports)
        return [
            AgentEndpoints(
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
        watchdog.watch(
            _DATABASE_STAGE, int((directory / "postmaster.pid").read_text().split()[0]), signal.SIGINT
        )
        self._on_step("Bringing the schema up to date")
        settings = self.settings.environment.read(MigrationSettings)
        with ThreadPoolExecutor(
            max_workers=1
        ) as elsewhere:  # the caller's thread may already run an event loop
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
        return _Store(
            url=endpoint.store_url(_BUCKET), access_key=endpoint.access_key, secret_key=endpoint.secret_key
        )

    def _start_endpoint(self, port: int, secret_key: str | None = None) -> S3Endpoint:
        try:
            self._endpoint = endpoint = S3Endpoint.start(
                self.data_dir / "s3", port=port, secret_key=secret_key
            )
        except (EndpointFailed, OSError) as failed:
            raise UserError(f"The S3 endpoint does not start: {failed}") from failed
        self._cleanup.callback(endpoint.stop)
        return endpoint

    def _start_agents(self, layout: list[AgentEndpoints]) -> None:
        zones = list(dict.fromkeys(address.zone for address in layout))
        where = f"zone{'s' * (len(zones) > 1)} {', '.join(zones)}"
        self._on_step(f"Starting {counted(len(layout), 'agent')} in {where}")
        logs = self.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        given = self.settings.environment.variables
        inherited = {name: value for name, value in given.items() if name not in _SET_HERE}
        environment = {
            **_DEFAULTS,
            **inherited,
            **self.addresses.as_environment(),
            **self.settings.agent_environment,
        }
        self.agents = [AgentProcess(address, environment, _new_log(logs, address.name)) for address in layout]
        self._cleanup.callback(self._stop_agents)
        if self.settings.history:
            self.history = ChildProcess("history", ["history", "run"], environment, _new_log(logs, "history"))
        for index in range(len(self.children)):
            self.spawn(index)
        for agent in self.agents:
            agent.wait_ready(self.settings.ready_timeout_s)

    def _stop_agents(self) -> None:
        for child in self.children:
            child.signal(signal.SIGTERM)
        for child in self.children:
            if not child.join(self.settings.drain_timeout_s):
                child.kill()


def _stop_postgres(postgres: EmbeddedPostgres) -> None:
    """Tries more than once: processes of an interrupted start end by themselves in a moment."""
    until = time.monotonic() + _STOP_POSTGRES_S
    while True:
        try:
            return postgres.stop()
        except EmbeddedPostgresFailed:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _new_log(logs: Path, name: str) -> Path:
    """Makes an empty log. Keeps the log of the last start next to it, and deletes older ones."""
    log = logs / f"{name}.log"
    if log.exists():
        log.replace(logs / f"{name}.log.1")
    return log
