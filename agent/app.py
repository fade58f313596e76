"""The composition root: runs one agent from its settings to its last response.

Promises (docs/design/failure-rules.md#start-and-stop):
- If the store or the database is away at start-up, the agent logs it, `/ready` says why, and the agent tries
  again.
- The agent serves Kafka only while its lease in the ring holds and its database owns the bucket.
- After a stop request, the agent takes no more requests. It answers those in flight, flushes, commits and
  leaves the ring within `drain_timeout_s`.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from agent.assembly import Assembly, Outside, assemble, build_peer_server
from agent.deferred_imports import import_all
from agent.health import Health, OwnershipWatch
from agent.http.collectors import ClientMetrics, ReadMetrics
from agent.http.readiness import NotReady
from agent.kafka.context import ConnectionState
from agent.kafka.dispatch import Dispatch
from agent.kafka.forwarding.forward_protocol import PREFACE as FORWARDED
from agent.kafka.forwarding.forwarding import Forwarding
from agent.kafka.served import APIS
from agent.kafka.transport.connection import Shared
from agent.kafka.transport.listener import BoundListener, Listener, bound_socket
from agent.kafka.transport.unauthenticated import Unauthenticated
from agent.metrics import Metrics
from agent.notices import GoneRangeNotices, ProducerNotices
from agent.security.audit.audit import Audit
from agent.security.logins.http_logins import HttpLogins
from agent.security.tls.contexts import KeptContext
from agent.security.tls.tls import Tls
from agent.settings import AppSettings
from agent.write_path.backoff import Backoff
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.ring.membership import Membership
from cache_ring.ring.probe_protocol import PREFACE as PROBES
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress, NamedAddress
from sequencer.cluster.ownership import OwnershipLost
from sequencer.cluster.store_identity import WrongStore
from sequencer.commits.coordinates import RunCoordinate
from sequencer.database.database import SequencerUnavailable
from storage.scoped_keys import TokenService
from storage.stores.object_store import ObjectStore, StoreUnavailable, StoreUrl
from storage.stores.open_store import open_store
from storage.threads import Threads

if TYPE_CHECKING:
    from agent.http.server import HttpServer
    from agent.http.vended_keys import VendedKeys

log = logging.getLogger("tidelog")

_LONGEST_CONNECT_PAUSE_S = 5.0
_LEASE_CHECK_S = 0.2
_JOIN_CHECK_S = 0.01
_HTTP_AFTER_S = 1.0
"""HTTP starts this long after the agent, even if Kafka is not served yet: /ready then says why."""
_HTTP_BACKLOG = 128
_NAMES_WAIT_S = 1.0
_AUDIT_DRAIN_S = 5.0


@dataclass(slots=True)
class _Reached:
    """What the HTTP side reads per request. A part is None until it exists."""

    sequencer: Sequencer | None = None
    store: ObjectStore | None = None
    assembly: Assembly | None = None
    logins: HttpLogins | None = None
    listener: Listener | None = None

    def clients(self) -> Iterable[ConnectionState]:
        return () if self.listener is None else self.listener.clients()

    def committed(self, runs: Sequence[RunCoordinate]) -> None:
        if self.assembly is not None:
            self.assembly.parts.reads.committed(runs)


class App:
    """One agent. Call `run` once. The ports are known when `started` is set."""

    def __init__(self, settings: AppSettings) -> None:
        self._app_settings = settings
        self._settings = settings.agent
        self.metrics = Metrics(
            CollectorRegistry(), self._settings.metrics_topics, self._settings.metrics_tenants
        )
        self.started = asyncio.Event()
        self._takes_requests = False
        """Set once Kafka is served. Before that, the agent may be waiting for its store or database."""
        self.imported = asyncio.Event()
        """Set once every deferred import is done, soon after the start."""
        self.kafka_port = 0
        """The first listener's."""
        self.kafka_ports: dict[str, int] = {}
        """By the listener's name."""
        self.http_port = 0
        self._http_context: KeptContext | None = None
        self._peer_tls: PeerTls | None = None
        self._http_wanted = asyncio.Event()
        self._reached = _Reached()
        self.metrics.registry.register(ClientMetrics(self._reached.clients))
        self._audit = Audit(settings.audit, self.metrics, time.monotonic)
        self._audit.node_id = self._node_id
        self._tls = Tls(settings.listeners, self.metrics)
        self._health = Health(
            lambda: self._reached.sequencer,
            lambda: self._reached.store,
            self._membership,
            lambda: None if self._reached.assembly is None else self._reached.assembly.parts.write_path,
            self._settings,
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set, then drains. Raises the failure of a part, or OSError if a port
        cannot be bound.
        """
        settings = self._settings
        async with contextlib.AsyncExitStack() as opened:
            bound = self._bind_kafka(opened)
            self._http_context, self._peer_tls = self._tls.of_http(), self._tls.of_peers()
            http_socket = bound_socket(settings.http_host, settings.http_port)
            opened.callback(http_socket.close)
            http_socket.listen(_HTTP_BACKLOG)  # early clients wait for `_serve_http`
            self.http_port = http_socket.getsockname()[1]
            async with asyncio.TaskGroup() as group:
                http = group.create_task(self._serve_http(http_socket), name="http")
                certificates = group.create_task(self._tls.watch.run(), name="certificates")
                async with contextlib.AsyncExitStack() as opened_outside:
                    outside = await self._reach_outside(opened_outside, stopping)
                    if outside is not None:
                        await self._serve(outside, bound, opened_outside, stopping)
                http.cancel()
                certificates.cancel()

    def load(self) -> float:
        """Returns how full the fullest of this agent's budgets is, from 0 to 1."""
        assembly = self._reached.assembly
        return 0.0 if assembly is None else assembly.parts.overload.load()

    def _bind_kafka(self, opened: contextlib.AsyncExitStack) -> tuple[BoundListener, ...]:
        """Raises OSError if an address cannot be bound."""
        bound = []
        for listener in self._app_settings.listeners.kafka_listeners(self._settings):
            bound_here = bound_socket(listener.host, listener.port)
            opened.callback(bound_here.close)
            context = self._tls.of_listener(listener)
            bound.append(BoundListener(listener=listener, socket=bound_here, context=context))
            self.kafka_ports[listener.name] = bound_here.getsockname()[1]
        self.kafka_port = bound[0].socket.getsockname()[1]
        return tuple(bound)

    # --- reaching what the agent stands on

    async def _reach_outside(
        self, opened: contextlib.AsyncExitStack, stopping: asyncio.Event
    ) -> Outside | None:
        """Returns the store and the database once both answer. Returns None if the agent must stop before
        that.
        """
        settings = self._settings
        sequencer = await Sequencer.open(
            settings.database_url.get_secret_value(), self._app_settings.sequencer
        )
        opened.push_async_callback(sequencer.close)
        self._reached.sequencer = sequencer
        backoff = Backoff(settings.connect_backoff_s, _LONGEST_CONNECT_PAUSE_S)
        while not stopping.is_set():
            try:
                await self._open_store(opened)
                await _all_of(self._health.check_store(), self._health.check_database())
                assert self._reached.store is not None, "it was opened just now"
                await sequencer.store_identity.bind(self._reached.store, settings.cluster, settings.store_url)
                await sequencer.ownership.check_object(self._reached.store, settings.cluster)
                catch_up_store = await open_store(settings.store_url, self._app_settings.store)
                opened.push_async_callback(catch_up_store.close)
                return Outside(
                    sequencer=sequencer,
                    store=self._reached.store,
                    catch_up_store=catch_up_store,
                    cluster_id=await sequencer.cluster.cluster_id(),
                )
            except (SequencerUnavailable, StoreUnavailable, WrongStore, OwnershipLost, NotReady) as error:
                self._http_wanted.set()
                log.warning("agent waits and tries again, /ready answers 503", extra={"reason": str(error)})
                await _first_of(backoff.wait(), stopping.wait())
        return None

    async def _open_store(self, opened: contextlib.AsyncExitStack) -> None:
        if self._reached.store is None:
            self._reached.store = await open_store(self._settings.store_url, self._app_settings.store)
            opened.push_async_callback(self._reached.store.close)

    # --- serving

    async def _serve(
        self,
        outside: Outside,
        bound: tuple[BoundListener, ...],
        opened: contextlib.AsyncExitStack,
        stopping: asyncio.Event,
    ) -> None:
        pages, peer_server = build_peer_server(outside, self._app_settings, self._peer_tls)
        peer_port = await peer_server.start(self._settings.peer_host, self._settings.peer_port)
        opened.push_async_callback(peer_server.close)
        assembly = assemble(
            outside,
            pages,
            peer_server,
            self._address(peer_port, bound),
            self._app_settings,
            self.metrics,
            self._audit,
            self._peer_tls,
        )
        parts = assembly.parts
        self.metrics.registry.register(ReadMetrics(parts.pages, parts.reads, peer_server, assembly.watch))
        self.metrics.registry.register(parts.telemetry)
        opened.callback(parts.checking.close)
        opened.callback(parts.authentication.close)
        opened.push_async_callback(parts.pages.close)
        opened.push_async_callback(parts.reads.close)
        self._reached.assembly = assembly
        made = assembly.parts
        self._reached.logins = HttpLogins(
            made.authentication,
            made.authorizer,
            time.time,
            is_tenant=lambda name: assembly.tenants.get(name) is not None,
        )
        dispatch = Dispatch(APIS, self._settings)
        forwarding = Forwarding(dispatch, parts.membership, self._settings, self.metrics)
        listener = Listener(
            Shared(
                settings=self._settings,
                parts=parts,
                dispatch=dispatch,
                memory=parts.request_memory,
                bulk_memory=parts.bulk_memory,
                unauthenticated=Unauthenticated(self._app_settings.sasl, self.metrics),
                metrics=self.metrics,
                tenants=assembly.tenants,
                usage=assembly.usage,
                forwarding=None if self._settings.one_address is None else forwarding,
            ),
            bound,
            self._tls.acceptor("kafka"),
            self._app_settings.listeners.principal_mapping(),
        )
        parts.authentication.known.on_deleted = listener.end_sessions
        parts.authentication.known.in_use = listener.credentials_in_use
        peer_server.share(FORWARDED, listener.take_forwarded)
        peer_server.share(PROBES, assembly.watch.take)
        parts.membership.when_changed(forwarding.look)
        self._reached.listener = listener
        watch = OwnershipWatch(outside.sequencer.ownership, outside.store, self._settings.cluster)
        outside.sequencer.database.on_change(watch.doubt)
        notices = GoneRangeNotices(parts.sequencer.gone_ranges, self._settings)
        advice = ProducerNotices(listener.clients, self._settings)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(parts.membership.run(), name="membership")]
            await _first_of(self._joined(assembly), stopping.wait())
            if not stopping.is_set():
                tasks.append(group.create_task(parts.acls.run(), name="acls"))
                tasks.append(group.create_task(assembly.tenants.run(), name="tenants"))
                await _first_of(parts.acls.loaded.wait(), stopping.wait())
                await _first_of(assembly.tenants.loaded.wait(), stopping.wait())
            if not stopping.is_set():
                tasks += [
                    group.create_task(assembly.coordinates.run(), name="coordinates"),
                    group.create_task(assembly.push.run(), name="push"),
                    group.create_task(assembly.watch.run(), name="peer watch"),
                    group.create_task(parts.topics.run(), name="topics"),
                    group.create_task(parts.quotas.run(), name="quotas"),
                    group.create_task(assembly.usage.run(), name="usage of tenants"),
                    group.create_task(parts.authentication.run(), name="authentication"),
                    group.create_task(parts.write_path.run(), name="write path"),
                    group.create_task(parts.coordinator.run(), name="groups"),
                    group.create_task(assembly.offset_batches.run(), name="offset commits"),
                    group.create_task(forwarding.run(), name="forwarding"),
                    group.create_task(listener.run(), name="listener"),
                    group.create_task(watch.run(), name="ownership"),
                    group.create_task(notices.run(), name="gone ranges"),
                    group.create_task(advice.run(), name="producer advice"),
                    group.create_task(self._audit.run(), name="audit"),
                ]
                if assembly.audit_topic is not None:
                    tasks.append(group.create_task(assembly.audit_topic.run(), name="audit topic"))
                await self._serve_while_leased(assembly, watch, listener, stopping)
                forwarding.drain()
                await self._drain(assembly, listener)
                await assembly.usage.last_report()
            await parts.membership.leave()
            for task in tasks:
                task.cancel()

    async def _serve_while_leased(
        self, assembly: Assembly, watch: OwnershipWatch, listener: Listener, stopping: asyncio.Event
    ) -> None:
        """Serves while this agent's lease in the ring holds and its database owns the bucket. Stops when one
        of them is lost, and resumes when both hold (docs/design/failure-rules.md#start-and-stop).
        """
        membership = assembly.parts.membership
        self_ = membership.self_
        log.info(
            "agent serves",
            extra={
                "node_id": None if self_ is None else self_.node_id,
                "zone": self._settings.zone,
                "kafka_port": self.kafka_port,
                "http_port": self.http_port,
            },
        )
        await listener.listening.wait()
        self.started.set()
        self._http_wanted.set()
        self._takes_requests = True
        while not stopping.is_set():
            if (membership.is_serving() and not watch.is_doubted) != self._takes_requests:
                self._takes_requests = not self._takes_requests
                if self._takes_requests:
                    log.info("agent serves again")
                    listener.resume()
                elif (because := membership.lost_because) is not None:
                    log.error("agent stops serving", extra={"reason": because})
                    listener.suspend("ownership_lost")
                elif watch.is_doubted:
                    log.warning(
                        "agent stops serving: another Postgres answers, the bucket's owner is checked first"
                    )
                    listener.suspend("ownership_doubted")
                else:
                    log.warning("agent stops serving: its lease could not be renewed")
                    listener.suspend("lease_lost")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEASE_CHECK_S):
                    await stopping.wait()

    async def _drain(self, assembly: Assembly, listener: Listener) -> None:
        """Takes no more requests and answers those in flight. When the time is over, the rest is dropped
        without an answer.
        """
        log.info("agent drains", extra={"connections": listener.connections})
        parts = assembly.parts
        assembly.watch.leave()
        parts.reads.drain()
        parts.coordinator.drain()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.gather(listener.drain(), parts.write_path.drain())
                await parts.write_path.drain()  # requests that came meanwhile and want no answer
                await self._drain_audit(assembly)
        except TimeoutError:
            log.warning(
                "agent stops with requests in flight",
                extra={
                    "connections": listener.connections,
                    "unacknowledged": parts.write_path.unacknowledged_bytes,
                },
            )

    async def _drain_audit(self, assembly: Assembly) -> None:
        self._audit.report_lost()
        if assembly.audit_topic is not None:
            try:
                async with asyncio.timeout(_AUDIT_DRAIN_S):
                    await assembly.audit_topic.drain()
            except TimeoutError:
                log.warning("agent stops with audit events that are not in their topic")

    async def _joined(self, assembly: Assembly) -> None:
        """Waits, without a bound, until the agent is in the ring and sees itself there."""
        membership = assembly.parts.membership
        while membership.self_ is None or membership.leased.agent(membership.self_.node_id) is None:
            with contextlib.suppress(TimeoutError):
                await membership.wait_joined(_LONGEST_CONNECT_PAUSE_S)
            await asyncio.sleep(_JOIN_CHECK_S)

    # --- the outside's view

    def _address(self, peer_port: int, bound: tuple[BoundListener, ...]) -> AgentAddress:
        settings = self._settings
        listeners = tuple(
            NamedAddress(
                listener=one.listener.name,
                host=one.listener.advertised_host or _reachable(one.listener.host),
                port=one.listener.advertised_port or self.kafka_ports[one.listener.name],
            )
            for one in bound
        )
        scheme = "http" if self._http_context is None else "https"
        return AgentAddress(
            zone=settings.zone,
            kafka_host=listeners[0].host,
            kafka_port=listeners[0].port,
            listeners=listeners,
            peer_host=settings.advertised_peer_host or _reachable(settings.peer_host),
            peer_port=peer_port,
            http_url=settings.advertised_http_url
            or f"{scheme}://{_reachable(settings.http_host)}:{self.http_port}",
        )

    async def _serve_http(self, listening: socket.socket) -> None:
        """Serves until cancelled. Starts once Kafka is served, or when it is clear that this will take a
        while.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HTTP_AFTER_S):
                await self._http_wanted.wait()
        await Threads("imports", 1).run(import_all)
        self.imported.set()
        server = self._http_server(listening)
        await server.start()
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop()

    def _http_server(self, listening: socket.socket) -> "HttpServer":
        from agent.http.access import HttpAccess
        from agent.http.app import create_http_app  # these import FastAPI (see agent/deferred_imports.py)
        from agent.http.iceberg import file_io_config, router
        from agent.http.parts import HttpParts
        from agent.http.server import HttpServer, HttpTls

        settings = self._settings
        reached = self._reached
        file_io = file_io_config(settings.store_url, self._app_settings.store)
        sasl, access = self._app_settings.sasl, None
        if sasl.http_authentication:
            access = HttpAccess(
                logins=lambda: reached.logins,
                authorizer=lambda: None if reached.assembly is None else reached.assembly.parts.authorizer,
                audit=self._audit,
                has_tls=self._http_context is not None,
                allows_plaintext=sasl.http_plaintext_logins,
                open_metrics=sasl.http_open_metrics,
            )
        parts = HttpParts(
            access=access,
            audit=self._audit,
            sequencer=lambda: reached.sequencer,
            checks=self._health.checks(self.started.is_set, lambda: self._takes_requests),
            cluster=settings.cluster,
            zone=settings.zone,
            node_id=self._node_id,
            clients=reached.clients,
            committed=reached.committed,
            default_partitions=settings.default_partitions,
            max_partitions_per_topic=settings.max_partitions_per_topic,
            routers=(router(lambda: reached.sequencer, lambda: reached.store, file_io, self._vended_keys()),),
            registry=self.metrics.registry,
            before_metrics=self._name_topics,
        )
        context = self._http_context
        tls = None if context is None else HttpTls(acceptor=self._tls.acceptor("http"), context=context)
        return HttpServer(
            create_http_app(parts),
            listening,
            tls=tls,
            max_connections=settings.http_max_connections,
            idle_timeout_s=settings.http_idle_timeout_s,
        )

    def _vended_keys(self) -> "VendedKeys | None":
        from agent.http.vended_keys import VendedKeys

        settings, store = self._settings, StoreUrl.parse(self._settings.store_url)
        if settings.iceberg_sts_role_arn is None or store.scheme != "s3":
            return None
        duration_s, timeout_s = settings.iceberg_sts_duration_s, settings.iceberg_sts_timeout_s
        service = TokenService(
            store,
            self._app_settings.store,
            role_arn=settings.iceberg_sts_role_arn,
            endpoint=settings.iceberg_sts_endpoint,
            duration_s=duration_s,
            timeout_s=timeout_s,
        )
        return VendedKeys(
            service,
            store,
            duration_s=duration_s,
            timeout_s=timeout_s,
            most_tables=settings.iceberg_sts_tables,
            utc_now=lambda: datetime.now(UTC),
        )

    async def _name_topics(self) -> None:
        """Looks up the names of topics that `/metrics` has counts of. Without a database it shows the known
        ones.
        """
        assembly, traffic = self._reached.assembly, self.metrics.topics
        unnamed = traffic.unnamed()
        if assembly is None or not unnamed:
            return
        with contextlib.suppress(SequencerUnavailable, TimeoutError):
            async with asyncio.timeout(_NAMES_WAIT_S):
                found = await assembly.parts.topics.by_id(unnamed)
            traffic.named(unnamed, {topic_id: topic.name for topic_id, topic in found.items()})

    def _membership(self) -> Membership | None:
        return None if self._reached.assembly is None else self._reached.assembly.parts.membership

    def _node_id(self) -> int | None:
        membership = self._membership()
        self_ = None if membership is None else membership.self_
        return None if self_ is None else self_.node_id


def _reachable(host: str) -> str:
    """Returns the name that others use for a bound address."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host


async def _all_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns when all are over. Raises the failure of the first of them, in this order."""
    for outcome in await asyncio.gather(*waits, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns when the first is over. The others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
