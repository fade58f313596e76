"""The process of `tidelog agent`: an agent, the housekeeper's jobs, or both, on one event loop until SIGTERM
or SIGINT.

Promises (docs/design/failure-rules.md#start-and-stop):
- The first signal drains: requests in flight are answered, and the agent leaves the ring. A second signal
  ends the process at once.
- If the database or the store is away at the start, the process waits for it and does not crash.
- At its start it logs how much memory it may take, and warns if it may open too few files.

How busy this process keeps a core. An agent has one event loop, so it can use one core well.

Pure: the caller owns both clocks.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import time
from collections.abc import Callable

import uvloop
from prometheus_client import Gauge

from agent.app import App
from agent.security.listeners import is_loopback, open_listeners
from agent.security.tls.contexts import UnusableFiles
from sequencer.client import Sequencer
from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import SequencerUnavailable
from sequencer.database.options import is_encrypted
from sequencer.topics.topic_key_cache import keys_for_jobs
from storage.stores.object_store import StoreUnavailable, StoreUrl
from storage.stores.open_store import open_store
from tidelog.devstack.ports import is_free
from tidelog.errors import UserError
from tidelog.process.memory_bound import memory_bound_bytes
from tidelog.process.settings_fit import AllSettings

_LEAST_SPAN_S = 1.0


class CpuShare:
    """`cpu_s` and `now_s` are clocks in seconds: of the process' CPU time, and monotonic."""

    def __init__(self, cpu_s: Callable[[], float], now_s: Callable[[], float]) -> None:
        self._cpu_s = cpu_s
        self._now_s = now_s
        self._since = (now_s(), cpu_s())
        self._share = 0.0

    def share(self) -> float:
        """From 0 to 1, since the last call that was at least a second ago."""
        began_s, spent_s = self._since
        now_s = self._now_s()
        if now_s - began_s >= _LEAST_SPAN_S:
            cpu_s = self._cpu_s()
            self._share = min(1.0, (cpu_s - spent_s) / (now_s - began_s))
            self._since = (now_s, cpu_s)
        return self._share


_FILES_BESIDE_CONNECTIONS = 256
_JOBS_AFTER_S = 5.0
"""The housekeeper begins this long after the start, even if Kafka is not served yet."""
_COLLECT_EVERY_S = 5.0

log = logging.getLogger("tidelog")


def run_agent(settings: AllSettings) -> None:
    """Returns when the agent has drained. If one role fails, both end. Raises `UserError` for an address that
    it cannot bind.
    """
    _allow_files(settings)
    try:
        uvloop.run(_run(settings))
    except* OSError as failed:
        raise _cannot_listen(failed, settings) from None
    except* UnusableFiles as failed:
        raise UserError(
            f"The agent cannot use its certificate files: {_first(failed)}.",
            "Correct TIDELOG_TLS_CERTIFICATE_FILE, TIDELOG_TLS_KEY_FILE or TIDELOG_TLS_CA_FILE, or those of "
            "TIDELOG_HTTP_TLS_* and TIDELOG_PEER_TLS_*.",
        ) from None


def _allow_files(settings: AllSettings) -> None:
    """Raise the limit of open files: each connection is one, and the default limit is 1,024."""
    agent, handshakes = settings.agent, settings.listeners.tls_handshakes
    wanted = agent.max_connections + agent.max_forwarded_connections + handshakes + _FILES_BESIDE_CONNECTIONS
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and wanted > most:
        log.warning(
            "fewer open files are allowed than there may be connections; raise the limit (ulimit -n)",
            extra={"allowed": most, "wanted": wanted},
        )
        wanted = most
    if allowed != resource.RLIM_INFINITY and wanted > allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _first(failed: BaseExceptionGroup[Exception]) -> BaseException:
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _cannot_listen(failed: BaseExceptionGroup[OSError], settings: AllSettings) -> UserError:
    error, agent = _first(failed), settings.agent
    named = "LISTENERS" if settings.listeners.listeners else "KAFKA_PORT"
    wanted = (
        *((named, one.host, one.port) for one in settings.listeners.kafka_listeners(agent)),
        ("HTTP_PORT", agent.http_host, agent.http_port),
        ("PEER_PORT", agent.peer_host, agent.peer_port),
    )
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        taken = [
            f"{host}:{port} (TIDELOG_{part})"
            for part, host, port in wanted
            if port and not is_free(port, host)
        ]
        if taken:
            return UserError(
                f"In use by another program: {', '.join(taken)}.", "Choose another; 0 takes a free one."
            )
    return UserError(
        f"The agent cannot listen: {error}.",
        "Correct TIDELOG_KAFKA_HOST or _PORT or TIDELOG_LISTENERS, TIDELOG_HTTP_HOST or _PORT, "
        "TIDELOG_PEER_HOST or _PORT.",
    )


async def _run(settings: AllSettings) -> None:
    process = settings.process
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stopping, number)
    memory_bytes = memory_bound_bytes(settings)
    log.info(
        "starting",
        extra={
            "pid": os.getpid(),
            "roles": process.roles,
            "zone": settings.agent.zone,
            "memory_mib": memory_bytes >> 20,
        },
    )
    _warn_of_strangers(settings)
    _warn_of_readers(settings)
    app = App(settings)
    bound = Gauge("tidelog_memory_bound_bytes", "Memory to give this process", registry=app.metrics.registry)
    bound.set(memory_bytes)
    async with asyncio.TaskGroup() as group:
        if "kafka" in process.role_set:
            group.create_task(app.run(stopping), name="agent")
            group.create_task(_spare_collections(app, stopping), name="collections")
        if "jobs" in process.role_set:
            group.create_task(_keep_house(settings, app, stopping), name="jobs")
    log.info("stopped", extra={"pid": os.getpid()})


def _warn_of_strangers(settings: AllSettings) -> None:
    """Says loudly who may do what, unless the operator said that it is meant so."""
    agent, listeners = settings.agent, settings.listeners
    if listeners.insecure or "kafka" not in settings.process.role_set:
        return
    for one in open_listeners(listeners.kafka_listeners(agent)):
        log.warning(
            "INSECURE: anyone who reaches this Kafka listener may read, write and delete everything; "
            "authenticate clients (docs/security.md), or set TIDELOG_INSECURE=true if the network is closed",
            extra={
                "listener": one.name,
                "binds": f"{one.host}:{one.port}",
                "security_protocol": one.security_protocol.value,
            },
        )
    if not is_loopback(agent.http_host) and not settings.sasl.http_authentication:
        log.warning(
            "INSECURE: anyone who reaches the HTTP side may create and delete topics; keep it in a closed "
            "network (docs/security.md), or set TIDELOG_INSECURE=true if it is in one",
            extra={"binds": f"{agent.http_host}:{agent.http_port}"},
        )


def _warn_of_readers(settings: AllSettings) -> None:
    """Says which connections to the outside anyone on the way may read."""
    if settings.listeners.insecure:
        return
    if not StoreUrl.parse(settings.agent.store_url).is_encrypted:
        log.warning(
            "INSECURE: records go to the object store unencrypted; use an https endpoint (docs/security.md), "
            "or set TIDELOG_INSECURE=true if the network is closed"
        )
    if not is_encrypted(settings.agent.database_url.get_secret_value()):
        log.warning(
            "INSECURE: nothing makes the connections to Postgres encrypted; add sslmode=verify-full and "
            "sslrootcert to TIDELOG_DATABASE_URL (docs/security.md), or set TIDELOG_INSECURE=true if the "
            "network is closed"
        )


async def _spare_collections(app: App, stopping: asyncio.Event) -> None:
    """Exclude classes and code from garbage collections, because they live as long as the process.

    Young objects are also collected by the clock. A failed upload leaves few objects that hold a whole
    segment, so collections by the number of objects would come too late.
    """
    imported, stopped = asyncio.ensure_future(app.imported.wait()), asyncio.ensure_future(stopping.wait())
    await asyncio.wait({imported, stopped}, return_when=asyncio.FIRST_COMPLETED)
    imported.cancel()
    stopped.cancel()
    gc.freeze()
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COLLECT_EVERY_S):
                await stopping.wait()
        gc.collect(1)


def _stop(stopping: asyncio.Event, number: signal.Signals) -> None:
    if stopping.is_set():
        log.warning(
            "stopped by a second signal; requests in flight are dropped", extra={"signal": number.name}
        )
        os._exit(128 + number)
    log.info("draining", extra={"signal": number.name})
    stopping.set()


async def _keep_house(settings: AllSettings, app: App, stopping: asyncio.Event) -> None:
    """Separate connections, so that jobs neither wait for the agent's statements nor delay them."""
    async with asyncio.TaskGroup() as group:
        jobs = group.create_task(_run_jobs(settings, app), name="housekeeper")
        await stopping.wait()
        jobs.cancel()


async def _run_jobs(settings: AllSettings, app: App) -> None:
    if "kafka" in settings.process.role_set:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_JOBS_AFTER_S):
                await app.started.wait()
    # First what clients need (see agent/deferred_imports.py).
    from compactor.housekeeper import Housekeeper

    agent = settings.agent
    busy = CpuShare(time.process_time, time.monotonic)
    pause_s = agent.connect_backoff_s
    while True:
        try:
            async with contextlib.AsyncExitStack() as opened:
                sequencer = await Sequencer.open(agent.database_url.get_secret_value(), settings.sequencer)
                opened.push_async_callback(sequencer.close)
                store = await open_store(agent.store_url, settings.store)
                opened.push_async_callback(store.close)
                await sequencer.store_identity.bind(store, agent.cluster, agent.store_url)
                housekeeper = Housekeeper(
                    sequencer,
                    store,
                    settings.housekeeper,
                    app.metrics.registry,
                    cluster=agent.cluster,
                    load=lambda: max(app.load(), busy.share()),
                    keys=keys_for_jobs(sequencer.topic_keys, store, agent.cluster, settings.encryption),
                )
                await housekeeper.run()
        except (SequencerUnavailable, StoreUnavailable, WrongStore) as error:
            level = logging.ERROR if isinstance(error, WrongStore) else logging.WARNING
            log.log(
                level,
                "jobs wait for the database and its store",
                extra={"reason": str(error), "retry_s": pause_s},
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)
