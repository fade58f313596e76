"""Every setting of an agent: an option of `tidelog agent` and an environment variable `TIDELOG_<NAME>`.

Promises that each bound of the agent (a queue, a cache, a wait, a retry) is named here or in the settings of the part
that enforces it.
"""

from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from agent.groups.settings import GroupSettings
from agent.read_path.settings import ReadPathSettings
from cache_ring.settings import CacheRingSettings
from sequencer.settings import SequencerSettings
from storage.settings import Settings
from storage.stores.object_store import StoreSettings

_LARGEST_PORT: Final = 65_535
_S3_USD_PER_MILLION_PUTS: Final = 5.0
"""S3 Standard in us-east-1."""


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of `host:port` or `[IPv6]:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _LARGEST_PORT:
        raise ValueError(f"'{address}' is no host:port")
    return host, int(port)


class AgentSettings(Settings):
    database_url: SecretStr = SecretStr("")
    """The sequencer's Postgres, `postgresql://user:password@host:port/database`."""
    store_url: str = ""
    """The object store: `s3://bucket/prefix?endpoint=http://host:port`, `file:///directory`."""
    cluster: str = Field(default="tidelog", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """The first part of every object key, so that several clusters may share a bucket."""
    zone: str = Field(default="a", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """The availability zone this agent runs in: its rack, and the zone whose clients are sent to it."""

    kafka_host: str = "127.0.0.1"
    """The address the Kafka listener binds."""
    kafka_port: int = Field(default=9092, ge=0, le=65535)
    """The port of the Kafka listener; 0 takes a free one."""
    advertised_host: str | None = None
    """The host that Metadata names for this agent; by default `kafka_host`."""
    advertised_port: int | None = Field(default=None, ge=1, le=65535)
    """The port that Metadata names for this agent; by default the one bound."""
    inside_kafka_port: int | None = Field(default=None, ge=1, le=65535)
    """A second Kafka listener, on `kafka_host`, for clients inside the agents' network (other containers, other pods).
    They are told of each agent by its `advertised_peer_host` and this port, which must be the same for all agents."""
    one_address: str | None = None
    """`host:port` of a TCP load balancer before all agents: clients are told of no other address, any agent takes any
    request, and what belongs to a group's coordinator is forwarded to it over the peer ports."""
    max_forwarded_connections: int = Field(default=4096, ge=0)
    """Connections that other agents may open to forward their clients' requests, per agent; one more is refused."""
    forward_connect_timeout_s: float = Field(default=2.0, gt=0)
    """How long a coordinator may take to accept a forwarding connection."""
    forward_timeout_s: float = Field(default=30.0, gt=0)
    """How long the coordinator may take to answer a forwarded request that does not wait for other members."""
    http_host: str = "127.0.0.1"
    """The address the HTTP side binds (health, metrics, /v1, the Iceberg catalog)."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """The port of the HTTP side; 0 takes a free one."""
    peer_host: str = "127.0.0.1"
    """The address the page protocol binds, for other agents."""
    peer_port: int = Field(default=0, ge=0, le=65535)
    """The port of the page protocol; 0 takes a free one."""
    advertised_peer_host: str | None = None
    """The host that other agents reach this one's page protocol at; by default `peer_host`."""
    advertised_http_url: str | None = None
    """Where the HTTP side is reached, for `/v1/cluster` and the catalog; by default made of `http_host` and the port
    bound."""
    iceberg_vend_credentials: bool = False
    """Whether the Iceberg catalog hands the store's keys to its readers. Only where whoever reaches it may have them.
    """
    max_request_bytes: int = Field(default=104_857_600, ge=1024)
    """A frame larger than this closes its connection (Kafka's socket.request.max.bytes)."""
    max_control_request_bytes: int = Field(default=2_097_152, ge=1024)
    """The same for every request that is not a Produce: decoded, such a request takes many times its size."""
    max_partitions_per_request: int = Field(default=20_000, ge=1)
    """A Produce naming more partitions closes its connection."""
    max_entries_per_request: int = Field(default=50_000, ge=1_000)
    """Entries of all lists of a request together (topics, partitions, groups, members); more close its connection."""
    request_memory_bytes: int = Field(default=134_217_728, ge=1024)
    """Requests in memory, per agent, from their first byte to their answer and their commit. Past it sockets are not
    read."""
    connection_memory_bytes: int = Field(default=67_108_864, ge=1024)
    """Requests in memory per connection; a single larger request is still taken while nothing else of that connection
    is."""
    max_requests_in_flight: int = Field(default=128, ge=1)
    """Requests started and not yet answered, per connection."""
    max_connections: int = Field(default=4096, ge=1)
    """Connections per agent; one more is closed at once."""
    write_buffer_bytes: int = Field(default=2_048, ge=0)
    """Answer bytes a connection may hold in user space when the next answer follows. What a client does not take beyond
    it counts as an answer in memory, and its client as slow."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """A connection without a request for this long is closed (Kafka's connections.max.idle.ms)."""
    receive_timeout_s: float = Field(default=30.0, gt=0)
    """A frame whose bytes stop coming for this long closes its connection."""
    receive_timeout_when_full_s: float = Field(default=2.0, gt=0)
    """The same for a frame that has memory reserved, while other requests wait for memory."""
    unreserved_frame_bytes: int = Field(default=4_096, ge=0)
    """Bytes of a frame that are taken before memory for all of it is reserved, per connection."""
    large_answer_bytes: int = Field(default=6_291_456, ge=1024)
    """Answers about all topics or groups in memory together, of those above 64 KiB. A larger one is made when there is
    no other. The clients of one host take at most half."""
    send_timeout_s: float = Field(default=60.0, gt=0)
    """A client that takes no byte of its answer for this long is disconnected."""

    auto_create_topics: bool = True
    """Whether Metadata for an unknown topic, asked by a client that allows it, creates the topic."""
    default_partitions: int = Field(default=1, ge=1, le=10_000)
    """Partitions of a topic created without a count."""
    max_partitions_per_topic: int = Field(default=10_000, ge=1)
    """A request to create more partitions is refused."""
    max_admin_timeout_s: float = Field(default=120.0, gt=0)
    """The longest a request that changes topics is worked on, whatever timeout it names."""
    describe_partitions_limit: int = Field(default=2_000, ge=1)
    """Partitions in one answer to DescribeTopicPartitions (Kafka's max.request.partition.size.limit); more are paged.
    """
    describe_producers_limit: int = Field(default=1_000, ge=1)
    """Producers named per partition in an answer to DescribeProducers."""
    topic_cache_s: float = Field(default=5.0, ge=0)
    """How long a topic looked up is trusted, whatever happens; what another agent changes is noticed sooner."""
    topic_changes_poll_s: float = Field(default=0.5, gt=0)
    """The pause between two looks at whether topics were made, changed or deleted through other agents."""
    unknown_topic_cache_s: float = Field(default=0.25, ge=0)
    """How long the answer that a topic does not exist is trusted."""
    topic_cache_entries: int = Field(default=10_000, ge=1)
    """Topics kept in the lookup cache."""
    shared_lookup_keys: int = Field(default=1_000, ge=1)
    """Topics or partitions looked up by one statement, for all clients that ask for some. A request of more waits with
    so many at a time."""
    shared_lookups_waiting: int = Field(default=1_024, ge=1)
    """Requests that wait for such a statement, per kind of lookup. Past it, one of the client with most waiting is
    refused with a retriable error."""
    lookups_per_connection_s: float = Field(default=50.0, ge=0)
    """ListOffsets requests that one connection may make per second in the long run. Past it they wait. A request counts
    once more for each hundred partitions. 0: no limit."""
    lookups_per_host_s: float = Field(default=500.0, ge=0)
    """The same for all connections of a host together; one host is also all that comes through one load balancer."""
    lookup_burst_s: float = Field(default=10.0, gt=0)
    """Seconds of these rates that may be made at once, after a pause."""
    topic_mutations_per_s: float = Field(default=50.0, ge=0)
    """Partitions that one client may create or delete per second in the long run, at one agent (Kafka's
    controller_mutation_rate). A client is a host and a client id. 0: without limit."""
    topic_mutation_burst: float = Field(default=10_000.0, ge=1)
    """Partitions that such a client may create or delete at once, after a pause."""
    topic_mutation_clients: int = Field(default=10_000, ge=1)
    """Clients whose rate is remembered; past it the one longest unheard is forgotten."""
    redirect_window_s: float = Field(default=1.0, ge=0)
    """How long a connection is told NOT_LEADER_OR_FOLLOWER for a partition that moved to another agent, before it is
    served anyway."""
    refresh_window_s: float = Field(default=0.1, ge=0)
    """When another agent stops answering, each client connection is told NOT_LEADER_OR_FOLLOWER once, for one of its
    partitions and for so long: the client asks for Metadata, and lets go of what it sent to the silent agent."""
    max_redirects_per_connection: int = Field(default=10_000, ge=0)
    """Partitions remembered per connection as already redirected; past it none is redirected."""

    segment_size_bytes: int = Field(default=8_388_608, ge=1024)
    """A segment is sealed at this size."""
    linger_ms: float = Field(default=250.0, ge=0)
    """A segment is sealed when its oldest batch is this old."""
    put_budget_per_s: float = Field(default=4.0, gt=0)
    """PUTs per second that may be spent on sealing early, before size or age ask for it."""
    put_budget_burst: float = Field(default=16.0, ge=1)
    """PUTs that may be saved up; size, age and full windows may overdraw as many."""
    window_seals_usd_per_month: float = Field(default=20.0, ge=0)
    """Dollars a month that this agent may spend on PUTs of segments sealed because waiting brings nothing: all
    producers in them have as many requests in flight as they ever send; 0: none are sealed for it."""
    window_seals_saved_h: float = Field(default=24.0, gt=0)
    """Hours of that budget that may be saved up."""
    put_usd_per_million: float | None = Field(default=None, ge=0)
    """What the store charges for a million PUTs; 0: nothing, so that the budget in dollars has no bound. Unset: 5, as
    S3 does, and 0 where the store is a directory."""
    window_refill_ms: float = Field(default=20.0, ge=0)
    """A producer that fills its window again so soon after answers is limited by it; or in half the linger, or in half
    the time that the answers took. One that sends as records come takes longer."""
    window_wait_ms: float = Field(default=4.0, ge=0)
    """How long a segment whose producers have full windows waits for others that were just answered."""
    max_uploads: int = Field(default=16, ge=1)
    """Segments being uploaded at once; more wait sealed."""
    upload_timeout_s: float = Field(default=30.0, gt=0)
    """One attempt of an upload."""
    upload_attempts: int = Field(default=4, ge=1)
    """Attempts of an upload before its produce requests fail with a retriable error."""
    upload_backoff_s: float = Field(default=0.2, ge=0)
    """The pause before the second attempt, doubled for each further one, with jitter."""
    hedge_after_min_s: float = Field(default=0.3, gt=0)
    """No second, hedged attempt is started earlier than this, whatever the p99 of recent uploads is."""
    stalled_after_s: float = Field(default=10.0, gt=0)
    """The agent is not ready once uploads, or commits, have had no answer for this long."""
    store_trial_s: float = Field(default=5.0, gt=0)
    """The pause between two trial uploads while uploads fail and no client sends anything."""
    max_segments_per_commit: int = Field(default=64, ge=1)
    """Segments sequenced in one round trip."""
    commit_backoff_s: float = Field(default=0.1, gt=0)
    """The pause before a commit is repeated, doubled up to two seconds, with jitter."""
    reserved_segment_ids: int = Field(default=32, ge=1)
    """Segment ids reserved ahead of need."""
    reservation_lease_s: float = Field(default=900.0, gt=0)
    """How long a reserved segment id may be committed; longer than any upload and any database outage that is to be
    survived."""
    max_produce_timeout_s: float = Field(default=120.0, gt=0)
    """The longest a produce request waits, whatever timeout it names."""
    sequence_gap_patience_s: float = Field(default=60.0, ge=0)
    """How long an idempotent producer whose batch came before its predecessor is asked to try again: the predecessor
    may be on its way through another agent. Longer than clients wait for an answer before they send again."""
    max_sequence_gaps: int = Field(default=10_000, ge=1)
    """Producers and partitions with such a gap that are remembered; past it the longest unseen is forgotten."""
    max_decompressed_bytes: int = Field(default=67_108_864, ge=1024)
    """A compressed batch that decompresses to more is refused."""
    max_request_decompressed_bytes: int = Field(default=1_073_741_824, ge=1024)
    """The compressed batches of one produce request may together decompress to this; those beyond are refused."""
    validation_threads: int = Field(default=1, ge=1)
    """Threads that check batches and look times up beside the event loop; each may hold one batch decompressed."""
    validation_slice_bytes: int = Field(default=4_194_304, ge=1024)
    """A thread goes on to the next connection's batches once it has decompressed this much for one, or checked four
    times as much that was plain."""
    validation_thread_bytes: int = Field(default=65_536, ge=0)
    """A produce request with at least so many compressed bytes, or 64 times as many plain ones, is validated beside the
    event loop."""
    validation_loop_decompressed_bytes: int = Field(default=1_048_576, ge=1024)
    """A produce request whose batches decompress to more is validated beside the event loop, however small it came."""

    gone_ranges_look_s: float = Field(default=60.0, gt=0)
    """The pause between two looks for offsets that a recovery found to be gone: the log says why consumers skip them.
    """
    gone_ranges_logged: int = Field(default=100, ge=0)
    """Such ranges that an agent logs; `tidelog doctor` lists them."""

    throttle_from_share: float = Field(default=0.75, ge=0, lt=1)
    """Clients are asked to pause once the memory for requests or answers, or the queue of sealed segments, is used to
    more than this share."""
    throttle_max_ms: int = Field(default=1_000, ge=0)
    """The longest pause that an answer asks for, when one of them is full; 0: none."""

    telemetry_metrics: str = ",".join(
        f"org.apache.kafka.{name}"
        for name in (
            "producer.connection.creation.",
            "producer.node.request.latency.",
            "producer.produce.throttle.time.",
            "producer.record.queue.time.",
            "consumer.connection.creation.",
            "consumer.node.request.latency.",
            "consumer.poll.idle.ratio.",
            "consumer.coordinator.",
            "consumer.fetch.manager.fetch.latency.",
        )
    )
    """Prefixes of the metrics that clients are asked to push (KIP-714), separated by commas; `*`: all; empty: none."""
    telemetry_push_interval_s: float = Field(default=300.0, ge=0.1)
    """How often a client pushes its metrics."""
    telemetry_max_bytes: int = Field(default=1_048_576, ge=1024)
    """The largest push, before and after decompression (Kafka's telemetry.max.bytes)."""
    telemetry_clients: int = Field(default=1_000, ge=1)
    """Client instances whose metrics are kept; past it the one longest unheard is forgotten."""
    telemetry_bytes: int = Field(default=16_777_216, ge=1024)
    """Memory for the metrics of all clients; past it the client longest unheard is forgotten."""
    telemetry_series_per_client: int = Field(default=100, ge=0)
    """Metrics kept per client instance; more are dropped and counted."""

    producer_advice_look_s: float = Field(default=30.0, gt=0)
    """The pause between two looks for producers that are limited by their own windows."""
    producer_advice_logged: int = Field(default=100, ge=0)
    """Client ids that the log advises, in an agent's life; `tidelog clients` advises all."""
    metrics_topics: int = Field(default=100, ge=0)
    """Topics with counts of their own in `/metrics`; what the others move is counted together."""

    connect_backoff_s: float = Field(default=0.5, gt=0)
    """The pause before a store or database that is away is tried again, doubled up to five seconds."""
    drain_timeout_s: float = Field(default=20.0, gt=0)
    """On SIGTERM: the time for requests in flight to be answered; shorter than the platform's grace period."""

    def put_price(self) -> float:
        """Dollars for a million PUTs."""
        if self.put_usd_per_million is not None:
            return self.put_usd_per_million
        return _S3_USD_PER_MILLION_PUTS if self.store_url.startswith("s3://") else 0.0

    @field_validator("one_address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value or None

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.inside_kafka_port is not None and self.one_address is not None:
            raise ValueError(
                "TIDELOG_INSIDE_KAFKA_PORT and TIDELOG_ONE_ADDRESS exclude each other: behind one address there is no "
                "second one"
            )
        if self.max_request_bytes > self.request_memory_bytes:
            raise ValueError(
                f"TIDELOG_MAX_REQUEST_BYTES ({self.max_request_bytes}) must not exceed TIDELOG_REQUEST_MEMORY_BYTES "
                f"({self.request_memory_bytes}): a request must fit the agent's memory for requests"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """The settings of every part that an agent is made of."""

    agent: AgentSettings
    store: StoreSettings
    sequencer: SequencerSettings
    ring: CacheRingSettings
    read_path: ReadPathSettings
    groups: GroupSettings
