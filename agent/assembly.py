"""Makes and wires the parts of an agent, once its store and database were reached. Builds, and starts
nothing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from agent.groups.coordinator.coordinator import Coordinator, GroupMetrics
from agent.groups.offsets.group_offsets import GroupOffsets
from agent.groups.offsets.offset_batches import OffsetBatches
from agent.groups.settings import GroupSettings
from agent.kafka.audited_changes import shown_config
from agent.kafka.client_rates import LookupPace
from agent.kafka.configs.mutation_quota import mutation_quotas
from agent.kafka.routing.routing import RoutingTable
from agent.kafka.transport.memory import MemoryBudget
from agent.kafka.transport.overload import Overload
from agent.kafka.transport.response_memory import ResponseMemory
from agent.metrics import Metrics
from agent.parts import Parts
from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.entities import rates_of_tenants
from agent.read_path.known_coordinates import KnownCoordinates
from agent.read_path.reads import ReadPath
from agent.read_path.time_lookup import TimeLookup
from agent.security.acls.authorizer import Authorizer
from agent.security.acls.known_acls import KnownAcls
from agent.security.audit.audit import Audit
from agent.security.audit.audit_topic import AuditTopic
from agent.security.audit.events import Asker, Resource
from agent.security.logins.authentication import Authentication
from agent.settings import AppSettings
from agent.shared_lookups import SharedLookups
from agent.telemetry.telemetry import Telemetry
from agent.tenants.known_tenants import KnownTenants
from agent.tenants.usage import UsageMeter
from agent.topic_directory import TopicDirectory
from agent.transactional_ids import TransactionalIds
from agent.write_path.write_path import WritePath
from cache_ring.coordinates.coordinate_push import CoordinatePush, PartitionsRead
from cache_ring.pages.page_reader import PageReader
from cache_ring.pages.store_pages import StorePages
from cache_ring.peers.peer_client import PeerClient
from cache_ring.peers.peer_server import PeerServer
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.ring.membership import Membership
from cache_ring.ring.peer_watch import PeerWatch
from sequencer.client import Sequencer
from sequencer.cluster.agents import AgentAddress
from sequencer.commits.coordinates import RunCoordinate
from sequencer.groups.stored_groups import StoredGroup
from sequencer.history.history import history_prefix
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenant_names import prefix_of, tenant_of
from sequencer.topics.topic_config import TopicConfig
from sequencer.topics.topic_key_cache import TopicKeys
from storage.batches.produced_batches import LoneCheck
from storage.batches.record_batch import Compression
from storage.encryption.key_objects import KeyObjects
from storage.encryption.key_wrapping import key_wrapping
from storage.identifiers import ObjectKey, TopicId
from storage.segments.keys import merged_prefix, segments_prefix
from storage.stores.object_store import ObjectStore
from storage.threads import Threads

if TYPE_CHECKING:
    from agent.groups.group import Group
    from agent.groups.streams.topology import InternalTopic

_ROUTES_KEPT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What an agent depends on. `catch_up_store` is a second client of the same store, with its own
    connections (docs/design/read-path.md#tail-and-history).
    """

    sequencer: Sequencer
    store: ObjectStore
    catch_up_store: ObjectStore
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts, and those that only the composition root starts and stops."""

    parts: Parts
    tenants: KnownTenants
    usage: UsageMeter
    peer_server: PeerServer
    coordinates: KnownCoordinates
    push: CoordinatePush
    watch: PeerWatch
    offset_batches: OffsetBatches
    audit_topic: AuditTopic | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnWrites:
    """Tells the read path what the write path wrote."""

    pages: PageReader
    reads: ReadPath

    def put_own(self, object_key: ObjectKey, data: bytes) -> None:
        self.pages.put_own(object_key, data)

    def committed(self, runs: Sequence[RunCoordinate]) -> None:
        self.reads.committed(runs)

    def missed(self, runs: Sequence[RunCoordinate]) -> None:
        self.reads.missed(runs)


@dataclass(frozen=True, slots=True, kw_only=False)
class _RingAgents:
    """The agents that share quotas: those of the ring."""

    membership: Membership

    def node_id(self) -> int | None:
        self_ = self.membership.self_
        return None if self_ is None else self_.node_id

    def count(self) -> int:
        return len(self.membership.ring.agents)


def build_peer_server(
    outside: Outside, settings: AppSettings, tls: PeerTls | None
) -> tuple[StorePages, PeerServer]:
    """Makes the pages and their server for peers. It listens before all else is built, because its port is
    part of the agent's address.
    """
    pages = StorePages(outside.store, outside.catch_up_store, settings.ring)
    cluster = settings.agent.cluster
    secrets = outside.sequencer.agents.peer_secrets
    return pages, PeerServer(
        pages,
        settings.ring,
        secrets,
        (segments_prefix(cluster), merged_prefix(cluster), history_prefix(cluster)),
        tls=tls,
    )


def assemble(
    outside: Outside,
    store_pages: StorePages,
    peer_server: PeerServer,
    address: AgentAddress,
    settings: AppSettings,
    metrics: Metrics,
    audit: Audit,
    peer_tls: PeerTls | None = None,
) -> Assembly:
    clock = time.monotonic
    sequencer = outside.sequencer
    membership = Membership(sequencer.agents, address, settings.ring, peer_tls=peer_tls)
    sequencer.database.on_change(membership.end_lease)
    partitions_read = PartitionsRead(settings.read_path.recent_reader_s, settings.read_path.read_partitions)
    coordinates = KnownCoordinates(sequencer, partitions_read, settings.read_path, peer_server.push)
    topics = TopicDirectory(sequencer.topics, settings.agent, clock)
    sequencer.database.on_change(topics.forget_all)
    transactional_ids = TransactionalIds(sequencer.transactions, settings.agent)
    sequencer.database.on_change(transactional_ids.forget_all)
    peers = PeerClient(settings.ring, membership.peer_secrets, tls=peer_tls)
    checking = Threads("check", settings.agent.validation_threads)
    topic_keys = TopicKeys(
        sequencer.topic_keys,
        KeyObjects(outside.store, settings.agent.cluster),
        key_wrapping(settings.encryption),
        topics.known,
        settings.encryption,
        checking,
        clock,
    )
    pages = PageReader(
        membership,
        store_pages,
        peers,
        settings.ring,
        partial(_compression_of, topics),
        topic_keys,
    )
    membership.when_erased(pages.drop_made_before)
    reads = ReadPath(coordinates, pages, settings.read_path, metrics.topics, keys=topic_keys)
    write_path = WritePath(
        sequencer=sequencer,
        store=outside.store,
        membership=membership,
        settings=settings.agent,
        metrics=metrics,
        written=_OwnWrites(pages=pages, reads=reads),
        clock=clock,
    )
    authorizer = Authorizer(settings.authorization)
    acls = KnownAcls(sequencer.acl_changes, authorizer)
    sequencer.database.on_change(acls.forget_all)
    quotas = ClientQuotas(sequencer.quota_use, _RingAgents(membership), settings.quotas, clock)
    sequencer.database.on_change(quotas.forget_all)
    tenants = KnownTenants(sequencer.tenants, settings.tenants, outside.cluster_id)
    tenants.on_admins = authorizer.take_admins

    def follow_tenants(limits: Mapping[str, TenantLimits]) -> None:
        quotas.take_tenants(rates_of_tenants(limits))
        metrics.tenants.keep(limits)

    tenants.on_limits = follow_tenants
    sequencer.database.on_change(tenants.forget_all)
    bounds = SharedLookups(
        sequencer.coordinates.bounds,
        most_keys=settings.agent.shared_lookup_keys,
        most_waiting=settings.agent.shared_lookups_waiting,
    )
    lookups = (
        topics.used_share,
        transactional_ids.used_share,
        bounds.used_share,
        sequencer.database.used_share,
    )
    coordinator, offset_batches = _build_coordinator(
        sequencer, topics, membership, settings.groups, metrics, authorizer, tenants, audit
    )
    request_memory = MemoryBudget(settings.agent.request_memory_bytes)
    bulk_share = settings.agent.bulk_memory_share
    bulk_memory = MemoryBudget(int(request_memory.limit_bytes * bulk_share), whole=request_memory)
    authentication = Authentication(sequencer.user_credentials, settings.sasl, metrics, clock, audit)
    sequencer.database.on_change(authentication.known.forget_all)
    parts = Parts(
        settings=settings.agent,
        cluster_id=outside.cluster_id,
        sequencer=sequencer,
        store=outside.store,
        membership=membership,
        authentication=authentication,
        audit=audit,
        topics=topics,
        transactional_ids=transactional_ids,
        topic_keys=topic_keys,
        bounds=bounds,
        mutations=mutation_quotas(settings.agent, clock),
        lookup_pace=LookupPace(settings.agent, clock),
        quotas=quotas,
        write_path=write_path,
        pages=pages,
        reads=reads,
        routes=RoutingTable(_ROUTES_KEPT),
        authorizer=authorizer,
        acls=acls,
        group_settings=settings.groups,
        coordinator=coordinator,
        group_offsets=GroupOffsets(coordinator, offset_batches, sequencer.committed_offsets),
        request_memory=request_memory,
        bulk_memory=bulk_memory,
        response_memory=ResponseMemory(settings.agent.large_answer_bytes),
        overload=Overload(request_memory, bulk_memory, write_path, reads, lookups, settings.agent, metrics),
        telemetry=Telemetry(settings.agent, metrics, clock),
        metrics=metrics,
        lone_check=LoneCheck(),
        checking=checking,
        times=TimeLookup(
            sequencer.coordinates, pages, checking, settings.read_path, settings.agent, topic_keys
        ),
    )
    return Assembly(
        parts=parts,
        tenants=tenants,
        usage=UsageMeter(sequencer.tenants, settings.tenants, metrics.tenants),
        peer_server=peer_server,
        coordinates=coordinates,
        push=CoordinatePush(membership, settings.ring, partitions_read, coordinates.heard),
        watch=PeerWatch(membership, settings.ring),
        offset_batches=offset_batches,
        audit_topic=_build_audit_topic(audit, parts),
    )


def _build_audit_topic(audit: Audit, parts: Parts) -> AuditTopic | None:
    if audit.buffer is None:
        return None
    return AuditTopic(audit.buffer, parts.topics, parts.write_path, parts.topic_keys, uuid4().int >> 64)


def _compression_of(topics: TopicDirectory, topic_id: TopicId) -> Compression:
    """Returns the compression of records that are read from a topic's history: zstd where producers
    choose.
    """
    topic = topics.known(topic_id)
    compression = None if topic is None else TopicConfig.of(topic.config).compression
    return Compression.ZSTD if compression is None else compression


def _audit_internal_topic(audit: Audit, group_id: str, topic: "InternalTopic") -> None:
    """The event has no principal: members of the group cause it together."""
    tenant = tenant_of(group_id)
    shown = {name: shown_config(name, value) for name, value in topic.config.items()}
    created = Resource(
        type="TOPIC",
        name=topic.name if tenant is None else prefix_of(tenant) + topic.name,
        change={"partitions": str(topic.partition_count), **shown},
    )
    with audit.guarded():
        audit.changed(Asker(), "StreamsGroupHeartbeat", [created], f"created for streams group {group_id}")


def _build_coordinator(
    sequencer: Sequencer,
    topics: TopicDirectory,
    membership: Membership,
    settings: GroupSettings,
    metrics: Metrics,
    authorizer: Authorizer,
    tenants: KnownTenants,
    audit: Audit,
) -> tuple[Coordinator, OffsetBatches]:
    clock = time.monotonic

    def make_machine(stored: StoredGroup | None, now_ms: int) -> "Group":
        from agent.groups.group import Group  # see agent/deferred_imports.py

        return Group(settings, lambda: str(uuid4()), stored, now_ms)

    coordinator = Coordinator(
        groups=sequencer.groups,
        topics=topics,
        membership=membership,
        settings=settings,
        metrics=metrics,
        make_machine=make_machine,
        clock=clock,
        acls=(lambda: authorizer.index) if authorizer.is_on else None,
        is_tenant=lambda name: tenants.get(name) is not None,
        created_for=partial(_audit_internal_topic, audit),
    )
    sequencer.database.on_change(coordinator.forget_all)
    metrics.registry.register(GroupMetrics(coordinator))
    return coordinator, OffsetBatches(sequencer.committed_offsets, settings, metrics, coordinator.lost, clock)
