"""The parts of the agent that a handler may use: one Protocol for each part.

A handler's `RequestContext` names those that it uses, and mypy checks that it uses no other. `agent/parts.py`
is the one object with all parts.
"""

from typing import Protocol

from agent.groups.coordinator.coordinator import Coordinator
from agent.groups.offsets.group_offsets import GroupOffsets
from agent.groups.settings import GroupSettings
from agent.kafka.client_rates import LookupPace, TokenBuckets
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
from agent.shared_lookups import SharedLookups
from agent.telemetry.telemetry import Telemetry
from agent.topic_directory import TopicDirectory
from agent.transactional_ids import TransactionalIds
from agent.write_path.write_path import WritePath
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.commits.coordinates import PartitionBounds, PartitionKey
from sequencer.topics.topic_key_cache import TopicKeys
from storage.batches.produced_batches import LoneCheck
from storage.threads import Threads


class UsesSequencer(Protocol):
    @property
    def sequencer(self) -> Sequencer: ...


class UsesClusterId(Protocol):
    @property
    def cluster_id(self) -> str: ...


class UsesMembership(Protocol):
    @property
    def membership(self) -> Membership: ...


class UsesAuthentication(Protocol):
    @property
    def authentication(self) -> Authentication: ...


class UsesAudit(Protocol):
    @property
    def audit(self) -> Audit: ...


class UsesTopics(Protocol):
    @property
    def topics(self) -> TopicDirectory: ...


class UsesTransactionalIds(Protocol):
    @property
    def transactional_ids(self) -> TransactionalIds: ...


class UsesBounds(Protocol):
    @property
    def bounds(self) -> SharedLookups[PartitionKey, PartitionBounds]: ...


class UsesAuthorizer(Protocol):
    @property
    def authorizer(self) -> Authorizer: ...


class UsesAcls(Protocol):
    @property
    def acls(self) -> KnownAcls: ...


class UsesMutations(Protocol):
    @property
    def mutations(self) -> TokenBuckets: ...


class UsesQuotas(Protocol):
    @property
    def quotas(self) -> ClientQuotas: ...


class UsesLookupPace(Protocol):
    @property
    def lookup_pace(self) -> LookupPace: ...


class UsesWritePath(Protocol):
    @property
    def write_path(self) -> WritePath: ...


class UsesReads(Protocol):
    @property
    def reads(self) -> ReadPath: ...


class UsesGroupSettings(Protocol):
    @property
    def group_settings(self) -> GroupSettings: ...


class UsesCoordinator(Protocol):
    @property
    def coordinator(self) -> Coordinator: ...


class UsesGroupOffsets(Protocol):
    @property
    def group_offsets(self) -> GroupOffsets: ...


class UsesResponseMemory(Protocol):
    @property
    def response_memory(self) -> ResponseMemory: ...


class UsesRequestMemory(Protocol):
    @property
    def request_memory(self) -> MemoryBudget: ...

    @property
    def bulk_memory(self) -> MemoryBudget: ...


class UsesOverload(Protocol):
    @property
    def overload(self) -> Overload: ...


class UsesTelemetry(Protocol):
    @property
    def telemetry(self) -> Telemetry: ...


class UsesMetrics(Protocol):
    @property
    def metrics(self) -> Metrics: ...


class UsesLoneCheck(Protocol):
    @property
    def lone_check(self) -> LoneCheck: ...


class UsesChecking(Protocol):
    @property
    def checking(self) -> Threads: ...


class UsesTopicKeys(Protocol):
    @property
    def topic_keys(self) -> TopicKeys: ...


class UsesTimes(Protocol):
    @property
    def times(self) -> TimeLookup: ...
