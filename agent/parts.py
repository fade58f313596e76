"""The parts of an agent, once the store and the database were reached. Only agent/app.py builds them."""

from dataclasses import dataclass

from agent.groups.coordinator.coordinator import Coordinator
from agent.groups.offsets.group_offsets import GroupOffsets
from agent.groups.settings import GroupSettings
from agent.kafka.client_rates import LookupPace, TokenBuckets
from agent.kafka.routing.routing import RoutingTable
from agent.kafka.transport.memory import MemoryBudget
from agent.kafka.transport.overload import Overload
from agent.kafka.transport.response_memory import ResponseMemory
from agent.metrics import Metrics
from agent.quotas.client_quotas import ClientQuotas
from agent.read_path.reads import ReadPath
from agent.read_path.time_lookup import TimeLookup
from agent.security.acls.authorizer import Authorizer
from agent.security.acls.known_acls import KnownAcls
from agent.security.audit.audit import Audit
from agent.security.logins.authentication import Authentication
from agent.settings import AgentSettings
from agent.shared_lookups import SharedLookups
from agent.telemetry.telemetry import Telemetry
from agent.topic_directory import TopicDirectory
from agent.transactional_ids import TransactionalIds
from agent.write_path.write_path import WritePath
from cache_ring.pages.page_reader import PageReader
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.commits.coordinates import PartitionBounds, PartitionKey
from sequencer.topics.topic_key_cache import TopicKeys
from storage.batches.produced_batches import LoneCheck
from storage.stores.object_store import ObjectStore
from storage.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    settings: AgentSettings
    cluster_id: str
    sequencer: Sequencer
    store: ObjectStore
    membership: Membership
    authentication: Authentication
    audit: Audit
    topics: TopicDirectory
    transactional_ids: TransactionalIds
    topic_keys: TopicKeys
    bounds: SharedLookups[PartitionKey, PartitionBounds]
    mutations: TokenBuckets
    """What each client may create and delete (agent/kafka/configs/mutation_quota.py)."""
    lookup_pace: LookupPace
    quotas: ClientQuotas
    write_path: WritePath
    pages: PageReader
    reads: ReadPath
    routes: RoutingTable
    authorizer: Authorizer
    acls: KnownAcls
    group_settings: GroupSettings
    coordinator: Coordinator
    group_offsets: GroupOffsets
    request_memory: MemoryBudget
    bulk_memory: MemoryBudget
    """The part of it that bulk may take."""
    response_memory: ResponseMemory
    """For responses about all topics or groups."""
    overload: Overload
    telemetry: Telemetry
    metrics: Metrics
    lone_check: LoneCheck
    """Checks small requests on the event loop."""
    checking: Threads
    """Threads that check larger produce requests and look times up. Connections take turns."""
    times: TimeLookup
