"""Every setting of an agent: an option of `tidelog agent` and an environment variable `TIDELOG_<NAME>`.

Promise: each bound of the agent (a queue, a cache, a wait, a retry) is named here, or in the settings of the
part that enforces it.
"""

from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from agent.groups.settings import GroupSettings
from agent.quotas.settings import QuotaSettings
from agent.read_path.settings import ReadPathSettings
from agent.security.acls.settings import AuthorizationSettings
from agent.security.audit.settings import AuditSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.tenants.settings import TenantSettings
from cache_ring.settings import CacheRingSettings
from sequencer.settings import SequencerSettings
from storage.encryption.settings import EncryptionSettings
from storage.settings import Settings
from storage.stores.object_store import StoreSettings

_LARGEST_PORT: Final = 65_535
_S3_USD_PER_MILLION_PUTS: Final = 5.0
"""S3 Standard in us-east-1."""


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and the port of `host:port` or `[IPv6]:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _LARGEST_PORT:
        raise ValueError(f"'{address}' is not host:port")
    return host, int(port)


class AgentSettings(Settings):
    database_url: SecretStr = SecretStr("")
    """The URL of the sequencer's Postgres, `postgresql://user:password@host:port/database`."""
    store_url: str = ""
    """The URL of the object store: `s3://bucket/prefix?endpoint=http://host:port`, `file:///directory`."""
    cluster: str = Field(default="tidelog", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """The first part of every object key, so that several clusters may share a bucket."""
    zone: str = Field(default="a", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """The availability zone of this agent: its rack, and the zone whose clients are sent to it."""

    kafka_host: str = "127.0.0.1"
    """The address that the Kafka listener binds."""
    kafka_port: int = Field(default=9092, ge=0, le=65535)
    """The port of the Kafka listener. 0 takes a free one."""
    advertised_host: str | None = None
    """The host that Metadata names for this agent. By default `kafka_host`."""
    advertised_port: int | None = Field(default=None, ge=1, le=65535)
    """The port that Metadata names for this agent. By default the bound one."""
    one_address: str | None = None
    """`host:port` of a TCP load balancer before all agents. Clients see no other address, and any agent takes
    any request. A request for a group's coordinator is forwarded to it over the peer ports.
    """
    max_forwarded_connections: int = Field(default=4096, ge=0)
    """The most connections that other agents may open to forward their clients' requests. Further ones are
    refused.
    """
    forward_connect_timeout_s: float = Field(default=2.0, gt=0)
    """How long a coordinator may take to accept a forwarding connection."""
    forward_timeout_s: float = Field(default=30.0, gt=0)
    """How long the coordinator may take to answer a forwarded request that does not wait for other
    members.
    """
    http_host: str = "127.0.0.1"
    """The address that the HTTP side binds (health, metrics, /v1, the Iceberg catalog)."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """The port of the HTTP side. 0 takes a free one."""
    http_max_connections: int = Field(default=256, ge=1)
    """The most connections of the HTTP side. One more ends an idle one of the host that has most. While none
    is idle, further requests get 503, except `/live` and `/ready`.
    """
    http_idle_timeout_s: float = Field(default=30.0, gt=0)
    """An HTTP client that sends no request for this long is disconnected. One that does not end its request,
    or does not take its answer, is disconnected after twice this time at the latest.
    """
    peer_host: str = "127.0.0.1"
    """The address that the page protocol binds, for other agents."""
    peer_port: int = Field(default=0, ge=0, le=65535)
    """The port of the page protocol. 0 takes a free one."""
    advertised_peer_host: str | None = None
    """The host at which other agents reach this one's page protocol. By default `peer_host`."""
    advertised_http_url: str | None = None
    """The URL of the HTTP side for others, shown in `/v1/cluster` and the catalog. By default made of
    `http_host` and the bound port.
    """
    iceberg_sts_role_arn: str | None = Field(
        default=None, pattern=r"^arn:[^:]*:[^:]*:[^:]*:[^:]*:.+", min_length=20
    )
    """The role that the agent assumes for readers of the Iceberg catalog. They get temporary keys that read
    one table. MinIO takes any role. Unset: the catalog gives no keys."""
    iceberg_sts_endpoint: str | None = Field(default=None, pattern="^https?://[^/@]+/?$")
    """The URL of the Security Token Service (STS). MinIO's is that of the store. Unset: AWS' in the bucket's
    region."""
    iceberg_sts_duration_s: int = Field(default=3600, ge=900, le=43_200)
    """The life of such keys. They are given to readers for up to two thirds of it."""
    iceberg_sts_timeout_s: float = Field(default=5.0, gt=0)
    """The longest that one call to STS takes."""
    iceberg_sts_tables: int = Field(default=1_000, ge=1)
    """The most tables whose temporary keys an agent keeps. Past it, it drops the least used."""
    max_request_bytes: int = Field(default=104_857_600, ge=1024)
    """A larger frame closes its connection (Kafka's socket.request.max.bytes)."""
    max_control_request_bytes: int = Field(default=2_097_152, ge=1024)
    """The same for every request that is not a Produce: decoded, such a request takes many times its size."""
    max_partitions_per_request: int = Field(default=20_000, ge=1)
    """A Produce that names more partitions closes its connection."""
    max_entries_per_request: int = Field(default=50_000, ge=1_000)
    """The most entries of all lists of a request together (topics, partitions, groups, members). More close
    its connection.
    """
    request_memory_bytes: int = Field(default=134_217_728, ge=1024)
    """Bytes of requests in memory, per agent, from their first byte to their answer and their commit. Past it
    sockets are not read.
    """
    connection_memory_bytes: int = Field(default=67_108_864, ge=1024)
    """Bytes of requests in memory per connection. A single larger request is accepted while the connection
    has no other.
    """
    max_requests_in_flight: int = Field(default=128, ge=1)
    """Requests started and not yet answered, per connection."""
    max_connections: int = Field(default=4096, ge=1)
    """The most connections per agent. Further ones are closed at once."""
    write_buffer_bytes: int = Field(default=2_048, ge=0)
    """Answer bytes that a connection may hold in user space when the next answer follows. If a client leaves
    more unread, the answer counts as in memory, and the client as slow.
    """
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """A connection without a request for this long is closed (Kafka's connections.max.idle.ms)."""
    receive_timeout_s: float = Field(default=30.0, gt=0)
    """A frame whose bytes stop coming for this long closes its connection."""
    receive_timeout_when_full_s: float = Field(default=2.0, gt=0)
    """The same for a frame that has memory reserved, while other requests wait for memory."""
    unreserved_frame_bytes: int = Field(default=4_096, ge=0)
    """Bytes of a frame that are taken before memory for all of it is reserved, per connection."""
    large_answer_bytes: int = Field(default=6_291_456, ge=1024)
    """Bytes of answers about all topics or groups in memory together. Answers up to 64 KiB do not count. A
    larger one than this limit is made when there is no other. The clients of one host take at most half.
    """
    send_timeout_s: float = Field(default=60.0, gt=0)
    """A client that takes no byte of its answer for this long is disconnected."""

    auto_create_topics: bool = True
    """Whether Metadata for an unknown topic creates the topic, if the client allows it."""
    default_partitions: int = Field(default=1, ge=1, le=10_000)
    """Partitions of a topic that is created without a count."""
    max_partitions_per_topic: int = Field(default=10_000, ge=1)
    """The most partitions of a topic. A request for more is refused."""
    max_admin_timeout_s: float = Field(default=120.0, gt=0)
    """The longest time for a request that changes topics, whatever timeout it names."""
    describe_partitions_limit: int = Field(default=2_000, ge=1)
    """The most partitions in one answer to DescribeTopicPartitions (Kafka's
    max.request.partition.size.limit). Further ones are paged.
    """
    list_transactions_limit: int = Field(default=100_000, ge=1_000)
    """The most transactional ids that one ListTransactions looks at, or the most producers if it names
    producers.
    """
    transaction_max_timeout_s: float = Field(default=900.0, gt=0, le=2_000_000)
    """The longest transaction timeout that a producer may ask for (Kafka's transaction.max.timeout.ms)."""
    describe_producers_limit: int = Field(default=1_000, ge=1)
    """The most producers per partition in an answer to DescribeProducers. Those with open transactions are
    counted apart from the others.
    """
    topic_cache_s: float = Field(default=5.0, ge=0)
    """How long a topic that was looked up is trusted. Changes through other agents are noticed sooner."""
    topic_changes_poll_s: float = Field(default=0.5, gt=0)
    """The pause between two looks for topics that were created, changed or deleted through other agents."""
    unknown_topic_cache_s: float = Field(default=0.25, ge=0)
    """How long the answer that a topic does not exist is trusted."""
    topic_cache_entries: int = Field(default=10_000, ge=1)
    """Topics kept in the lookup cache."""
    shared_lookup_keys: int = Field(default=1_000, ge=1)
    """Topics or partitions in one lookup statement, which serves all waiting clients. A request with more is
    looked up in parts of this size.
    """
    shared_lookups_waiting: int = Field(default=1_024, ge=1)
    """Requests that wait for such a statement, per kind of lookup. Past it, a request of the client with most
    waiting ones is refused with a retriable error.
    """
    lookups_per_connection_s: float = Field(default=400.0, ge=0)
    """ListOffsets requests that one connection may make per second in the long run. Past it they wait. A
    request counts once more for each hundred partitions. 0: no limit. Spark's Kafka source makes two for each
    500 records (`max.poll.records`).
    """
    lookups_per_host_s: float = Field(default=1000.0, ge=0)
    """The same for all connections of a host together. All clients behind one load balancer count as one
    host.
    """
    lookup_burst_s: float = Field(default=4.0, gt=0)
    """Seconds of these rates that may be used at once, after a pause."""
    topic_mutations_per_s: float = Field(default=50.0, ge=0)
    """Partitions that one client may create or delete per second in the long run, at one agent (Kafka's
    controller_mutation_rate). A client is a host and a client id. 0: no limit.
    """
    topic_mutation_burst: float = Field(default=10_000.0, ge=1)
    """Partitions that such a client may create or delete at once, after a pause."""
    topic_mutation_clients: int = Field(default=10_000, ge=1)
    """The most clients whose rate is remembered. Past it the client that was silent longest is forgotten."""
    redirect_window_s: float = Field(default=1.0, ge=0)
    """How long a connection gets NOT_LEADER_OR_FOLLOWER for a partition that moved to another agent, before
    it is served anyway.
    """
    refresh_window_s: float = Field(default=0.1, ge=0)
    """When another agent stops answering, each client connection gets NOT_LEADER_OR_FOLLOWER for one of its
    partitions, for this long. The client then asks for Metadata, and gives up its requests to the silent
    agent.
    """
    max_redirects_per_connection: int = Field(default=10_000, ge=0)
    """The most partitions remembered per connection as redirected. Past it none is redirected."""

    segment_size_bytes: int = Field(default=8_388_608, ge=1024)
    """A segment is sealed at this size."""
    linger_ms: float = Field(default=250.0, ge=0)
    """A segment is sealed when its oldest batch is this old."""
    put_budget_per_s: float = Field(default=4.0, gt=0)
    """PUTs per second that may be spent on sealing early, before size or age require it."""
    put_budget_burst: float = Field(default=16.0, ge=1)
    """PUTs that may be saved up. Size, age and full windows may overdraw as many."""
    window_seals_usd_per_month: float = Field(default=20.0, ge=0)
    """Dollars a month that this agent may spend on PUTs of segments that are sealed because waiting brings
    nothing: all producers in them have as many requests in flight as they ever send. 0: none is sealed for
    that reason.
    """
    window_seals_saved_h: float = Field(default=24.0, gt=0)
    """Hours of that budget that may be saved up."""
    put_usd_per_million: float | None = Field(default=None, ge=0)
    """The store's price of a million PUTs. 0: they are free, so the budget in dollars has no bound. Unset: 5,
    as S3 has, and 0 if the store is a directory.
    """
    window_refill_ms: float = Field(default=20.0, ge=0)
    """A producer counts as limited by its window if it fills the window again this soon after answers, or in
    half the linger, or in half the time that the answers took. A producer that sends as records come takes
    longer.
    """
    window_wait_ms: float = Field(default=4.0, ge=0)
    """How long a segment whose producers have full windows waits for others that were just answered."""
    max_uploads: int = Field(default=16, ge=1)
    """The most segments being uploaded at once. Further ones wait sealed."""
    upload_timeout_s: float = Field(default=30.0, gt=0)
    """The timeout of one attempt of an upload."""
    upload_attempts: int = Field(default=4, ge=1)
    """Attempts of an upload before its produce requests fail with a retriable error."""
    upload_backoff_s: float = Field(default=0.2, ge=0)
    """The pause before the second attempt. It doubles for each further one, with jitter."""
    hedge_after_min_s: float = Field(default=0.3, gt=0)
    """No second, hedged attempt starts earlier than this, whatever the p99 of recent uploads is."""
    stalled_after_s: float = Field(default=10.0, gt=0)
    """The agent is not ready once uploads, or commits, have had no answer for this long."""
    store_trial_s: float = Field(default=5.0, gt=0)
    """The pause between two trial uploads while uploads fail and no client sends anything."""
    max_segments_per_commit: int = Field(default=64, ge=1)
    """The most segments sequenced in one round trip."""
    commit_backoff_s: float = Field(default=0.1, gt=0)
    """The pause before a commit is repeated. It doubles up to two seconds, with jitter."""
    reserved_segment_ids: int = Field(default=32, ge=1)
    """Segment ids reserved ahead of need."""
    reservation_lease_s: float = Field(default=900.0, gt=0)
    """How long a reserved segment id may be committed. Must be longer than any upload, and than any database
    outage that the agent should survive.
    """
    max_produce_timeout_s: float = Field(default=120.0, gt=0)
    """The longest that a produce request waits, whatever timeout it names."""
    sequence_gap_patience_s: float = Field(default=60.0, ge=0)
    """How long an idempotent producer whose batch came before its predecessor is asked to try again, because
    the predecessor may be on its way through another agent. Must be longer than clients wait for an answer
    before they send again.
    """
    max_sequence_gaps: int = Field(default=10_000, ge=1)
    """The most producers and partitions with such a gap that are remembered. Past it the oldest is
    forgotten.
    """
    max_decompressed_bytes: int = Field(default=67_108_864, ge=1024)
    """A compressed batch that decompresses to more is refused."""
    max_request_decompressed_bytes: int = Field(default=1_073_741_824, ge=1024)
    """The compressed batches of one produce request may together decompress to this. Those beyond are
    refused.
    """
    validation_threads: int = Field(default=1, ge=1)
    """Threads that check batches and look times up. Each may hold one decompressed batch."""
    validation_slice_bytes: int = Field(default=4_194_304, ge=1024)
    """A thread goes on to the next connection's batches once it has decompressed this much for one, or
    checked four times as much plain data.
    """
    validation_thread_bytes: int = Field(default=65_536, ge=0)
    """A produce request with at least this many compressed bytes, or 64 times as many plain ones, is
    validated in a thread.
    """
    validation_loop_decompressed_bytes: int = Field(default=1_048_576, ge=1024)
    """A produce request whose batches decompress to more is validated in a thread, however small it came."""

    gone_ranges_look_s: float = Field(default=60.0, gt=0)
    """The pause between two looks for offsets that a recovery found to be lost. The log says why consumers
    skip them.
    """
    gone_ranges_logged: int = Field(default=100, ge=0)
    """The most such ranges that an agent logs. `tidelog doctor` lists all."""

    bulk_memory_share: float = Field(default=0.5, gt=0, le=1)
    """The share of `request_memory_bytes` that requests marked bulk may take. A larger one goes alone."""
    bulk_uploads: int = Field(default=2, ge=1)
    """The most segments with bulk batches being uploaded at once. They are among `max_uploads`."""
    bulk_batches_per_commit: int = Field(default=2_000, ge=1)
    """The most bulk batches in a segment. A commit takes one such segment, and others wait for it."""
    interactive_wait_s: float = Field(default=3.0, gt=0)
    """How long an interactive Produce waits for its commit. After that it fails with a retriable error, and
    further ones are refused at once as long as an earlier write has waited for so long.
    """
    throttle_from_share: float = Field(default=0.75, ge=0, lt=1)
    """Clients are asked to pause once the memory for requests or answers, or the queue of sealed segments, is
    used to more than this share.
    """
    throttle_max_ms: int = Field(default=1_000, ge=0)
    """The longest pause that an answer asks for, when one of them is full. 0: none."""

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
    """Prefixes of the metrics that clients are asked to push (KIP-714), separated by commas. `*`: all. Empty:
    none.
    """
    telemetry_push_interval_s: float = Field(default=300.0, ge=0.1)
    """How often a client pushes its metrics."""
    telemetry_max_bytes: int = Field(default=1_048_576, ge=1024)
    """The largest push, before and after decompression (Kafka's telemetry.max.bytes)."""
    telemetry_clients: int = Field(default=1_000, ge=1)
    """The most client instances whose metrics are kept. Past it the one that was silent longest is
    forgotten.
    """
    telemetry_bytes: int = Field(default=16_777_216, ge=1024)
    """Memory for the metrics of all clients. Past it the client that was silent longest is forgotten."""
    telemetry_series_per_client: int = Field(default=100, ge=0)
    """Metrics kept per client instance. Further ones are dropped and counted."""

    producer_advice_look_s: float = Field(default=30.0, gt=0)
    """The pause between two looks for producers that are limited by their own windows."""
    producer_advice_logged: int = Field(default=100, ge=0)
    """The most client ids that the log advises, in an agent's life. `tidelog clients` advises all."""
    metrics_tenants: int = Field(default=100, ge=0)
    """The most tenants with series of their own in the metrics. Others are counted together."""
    metrics_topics: int = Field(default=100, ge=0)
    """The most topics with their own counts in `/metrics`. The traffic of all others is counted together."""

    connect_backoff_s: float = Field(default=0.5, gt=0)
    """The pause before a store or database that is away is tried again. It doubles up to five seconds."""
    drain_timeout_s: float = Field(default=20.0, gt=0)
    """The time after SIGTERM for requests in flight to be answered. Must be shorter than the platform's grace
    period.
    """

    def put_price(self) -> float:
        """Returns the price of a million PUTs in dollars."""
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
        if self.max_request_bytes > self.request_memory_bytes:
            raise ValueError(
                f"TIDELOG_MAX_REQUEST_BYTES ({self.max_request_bytes}) must not exceed "
                "TIDELOG_REQUEST_MEMORY_BYTES "
                f"({self.request_memory_bytes}): a request must fit the agent's memory for requests"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """The settings of all parts of an agent."""

    agent: AgentSettings
    store: StoreSettings
    sequencer: SequencerSettings
    ring: CacheRingSettings
    read_path: ReadPathSettings
    groups: GroupSettings
    sasl: SaslSettings
    authorization: AuthorizationSettings
    quotas: QuotaSettings
    listeners: ListenerSettings
    encryption: EncryptionSettings
    tenants: TenantSettings
    audit: AuditSettings
