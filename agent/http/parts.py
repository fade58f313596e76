"""What the HTTP side needs from the agent. The composition root provides it."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter
from prometheus_client import REGISTRY, CollectorRegistry

from agent.http.access import HttpAccess
from agent.http.readiness import Check
from agent.kafka.context import ConnectionState
from agent.security.audit.audit import Audit
from sequencer.client import Sequencer
from sequencer.commits.coordinates import RunCoordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpParts:
    """`sequencer` is called per request: it may return None while the agent starts without its database
    (docs/design/failure-rules.md#start-and-stop).

    `checks` make `/ready`, and their reasons come in this order. `routers` are mounted as they are (the
    Iceberg catalog). `before_metrics` runs before `/metrics` is answered. `node_id` is None until the agent
    has joined. `clients` are the connections of Kafka clients, in the order of their ids. `committed` is
    called with runs that were committed, for those who read them. `access` is None if anybody
    may use all of it.
    """

    sequencer: Callable[[], Sequencer | None]
    checks: tuple[Check, ...]
    cluster: str
    zone: str
    audit: Audit
    node_id: Callable[[], int | None]
    clients: Callable[[], Iterable[ConnectionState]] = tuple
    committed: Callable[[Sequence[RunCoordinate]], None] | None = None
    access: HttpAccess | None = None
    default_partitions: int = 1
    max_partitions_per_topic: int = 10_000
    routers: tuple[APIRouter, ...] = ()
    registry: CollectorRegistry = field(default=REGISTRY)
    before_metrics: Callable[[], Awaitable[None]] | None = None
    max_body_bytes: int = 1_048_576
    check_timeout_s: float = 2.0
    check_cache_s: float = 0.5
