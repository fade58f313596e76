"""The settings of consumer groups: options of `tidelog agent` and variables `TIDELOG_<NAME>`. Each text names
Kafka's config.
"""

from typing import Self

from pydantic import Field, model_validator

from storage.settings import Settings


class GroupSettings(Settings):
    group_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0)
    """How long an empty group waits for more members before its first generation
    (group.initial.rebalance.delay.ms).
    """
    group_min_session_timeout_ms: int = Field(default=6_000, ge=1)
    """The shortest session timeout that a classic member may ask for (group.min.session.timeout.ms)."""
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1)
    """The longest session timeout that a classic member may ask for (group.max.session.timeout.ms)."""
    group_max_size: int = Field(default=10_000, ge=1)
    """The most members of a group. Further ones are refused (group.max.size, group.consumer.max.size)."""
    group_consumer_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member of the new protocol is removed after this silence (group.consumer.session.timeout.ms)."""
    group_consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """How often members of the new protocol should send heartbeats (group.consumer.heartbeat.interval.ms)."""
    group_consumer_min_session_timeout_ms: int = Field(default=45_000, ge=1)
    """The shortest session timeout that a group's own config may name
    (group.consumer.min.session.timeout.ms).
    """
    group_consumer_max_session_timeout_ms: int = Field(default=60_000, ge=1)
    """The longest session timeout that a group's own config may name (group.consumer.max.session.timeout.ms).
    """
    group_consumer_min_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """The shortest heartbeat interval that a group's own config may name
    (group.consumer.min.heartbeat.interval.ms).
    """
    group_consumer_max_heartbeat_interval_ms: int = Field(default=15_000, ge=1)
    """The longest heartbeat interval that a group's own config may name
    (group.consumer.max.heartbeat.interval.ms).
    """
    group_consumer_max_rebalance_timeout_ms: int = Field(default=1_800_000, ge=1)
    """The longest time that a member of the new protocol, or of a streams group, may take to give partitions
    or tasks back.
    """
    group_streams_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member of a streams group is removed after this silence (group.streams.session.timeout.ms)."""
    group_streams_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """How often members of a streams group should send heartbeats (group.streams.heartbeat.interval.ms)."""
    group_streams_min_session_timeout_ms: int = Field(default=45_000, ge=1)
    """The shortest session timeout that a streams group's own config may name
    (group.streams.min.session.timeout.ms).
    """
    group_streams_max_session_timeout_ms: int = Field(default=60_000, ge=1)
    """The longest session timeout that a streams group's own config may name
    (group.streams.max.session.timeout.ms).
    """
    group_streams_min_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """The shortest heartbeat interval that a streams group's own config may name
    (group.streams.min.heartbeat.interval.ms).
    """
    group_streams_max_heartbeat_interval_ms: int = Field(default=15_000, ge=1)
    """The longest heartbeat interval that a streams group's own config may name
    (group.streams.max.heartbeat.interval.ms).
    """
    group_streams_num_standby_replicas: int = Field(default=0, ge=0)
    """How many standby copies of its state a streams group keeps for each task
    (group.streams.num.standby.replicas).
    """
    group_streams_max_standby_replicas: int = Field(default=2, ge=0)
    """The most standby copies that a streams group's own config may name
    (group.streams.max.standby.replicas).
    """
    group_streams_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0)
    """How long an empty streams group waits for more members before it assigns tasks
    (group.streams.initial.rebalance.delay.ms).
    """
    group_streams_max_initial_rebalance_delay_ms: int = Field(default=300_000, ge=0)
    """The longest such wait that a streams group's own config may name."""
    group_streams_max_topics: int = Field(default=2_000, ge=1)
    """The most topics, and the most subtopologies, that the topology of a streams group may name."""
    group_streams_max_topology_bytes: int = Field(default=1 << 20, ge=1)
    """The most characters of all names and configs in such a topology. Postgres keeps it with the group."""
    group_streams_max_tasks: int = Field(default=20_000, ge=1)
    """The most tasks of a streams group, and the most partitions of the topics that it creates."""
    group_streams_max_endpoint_bytes: int = Field(default=1 << 18, ge=1)
    """The most bytes of the list that tells members of a streams group which instance has the state of which
    partitions: its hosts, its topic names and 4 for each partition. If it would be longer, members get an
    empty list, and interactive queries find only the state of their own instance.
    """
    group_streams_topics_created_at_once: int = Field(default=20, ge=1)
    """The most internal topics that a streams group creates before it answers its members again. The rest
    follow at once.
    """
    group_regex_max_length: int = Field(default=1_000, ge=1)
    """The most characters of a regular expression that a member subscribes with."""
    group_regex_max_program_size: int = Field(default=10_000, ge=1)
    """The most instructions that such an expression may compile to (RE2's measure)."""
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0)
    """The longest metadata string of a committed offset (offset.metadata.max.bytes)."""

    group_queue_events: int = Field(default=20_000, ge=1)
    """The most waiting requests of one group. Further ones get an error that says to try again."""
    groups_loaded: int = Field(default=50_000, ge=1)
    """The most groups that one agent keeps in memory. Past it, the groups that were idle longest leave. If
    none can leave, requests of another group get an error that says to try again.
    """
    group_loads: int = Field(default=4, ge=1)
    """The most groups that are read from Postgres at once."""
    group_idle_s: float = Field(default=60.0, gt=0)
    """A group without members leaves memory after this time without requests. Postgres keeps it."""
    group_lease_s: float = Field(default=5.0, gt=0)
    """How long an agent answers for a group after Postgres last confirmed that it coordinates it."""
    group_lease_renew_s: float = Field(default=1.0, gt=0)
    """The pause between two such checks, each for all groups, and between two looks at the ring."""
    group_adopt_s: float = Field(default=60.0, gt=0)
    """The pause between two looks for groups of this agent whose members have not sent anything yet: they may
    have died together with the group's last coordinator.
    """
    group_topics_s: float = Field(default=3.0, gt=0)
    """The pause between two lookups of the topics that groups of the new protocol subscribe to."""
    offset_commit_queue: int = Field(default=20_000, ge=1)
    """The most waiting OffsetCommit requests of all groups. Further ones get an error that says to try again.
    """
    offset_commit_lanes: int = Field(default=2, ge=1)
    """The most statements for offset commits in flight at once, each for other groups."""
    offset_commits_per_statement: int = Field(default=1_000, ge=1)
    """The most OffsetCommit requests that share one statement."""
    offset_partitions_per_statement: int = Field(default=20_000, ge=1)
    """The most partitions in one such statement. A single request with more still goes."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.group_lease_renew_s >= self.group_lease_s:
            raise ValueError(
                f"TIDELOG_GROUP_LEASE_S ({self.group_lease_s}) must be longer than "
                "TIDELOG_GROUP_LEASE_RENEW_S "
                f"({self.group_lease_renew_s})"
            )
        return self
