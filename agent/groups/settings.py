"""Settings of consumer groups: options of `tidelog agent` and variables `TIDELOG_<NAME>`. Kafka's name for each is in
its text."""

from typing import Self

from pydantic import Field, model_validator

from storage.settings import Settings


class GroupSettings(Settings):
    group_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0)
    """How long an empty group waits for more members before its first generation (group.initial.rebalance.delay.ms)."""
    group_min_session_timeout_ms: int = Field(default=6_000, ge=1)
    """The shortest session timeout a classic member may ask for (group.min.session.timeout.ms)."""
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1)
    """The longest session timeout a classic member may ask for (group.max.session.timeout.ms)."""
    group_max_size: int = Field(default=10_000, ge=1)
    """Members of a group; one more is refused (group.max.size, group.consumer.max.size)."""
    group_consumer_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member of the new protocol silent for so long is removed (group.consumer.session.timeout.ms)."""
    group_consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """How often members of the new protocol are told to send heartbeats (group.consumer.heartbeat.interval.ms)."""
    group_consumer_min_session_timeout_ms: int = Field(default=45_000, ge=1)
    """The shortest session timeout that a group's own config may name (group.consumer.min.session.timeout.ms)."""
    group_consumer_max_session_timeout_ms: int = Field(default=60_000, ge=1)
    """The longest session timeout that a group's own config may name (group.consumer.max.session.timeout.ms)."""
    group_consumer_min_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """The shortest heartbeat interval that a group's own config may name (group.consumer.min.heartbeat.interval.ms)."""
    group_consumer_max_heartbeat_interval_ms: int = Field(default=15_000, ge=1)
    """The longest heartbeat interval that a group's own config may name (group.consumer.max.heartbeat.interval.ms)."""
    group_consumer_max_rebalance_timeout_ms: int = Field(default=1_800_000, ge=1)
    """The longest a member of the new protocol may take to give partitions back."""
    group_regex_max_length: int = Field(default=1_000, ge=1)
    """Characters of a regular expression that a member subscribes with."""
    group_regex_max_program_size: int = Field(default=10_000, ge=1)
    """Instructions that such an expression may compile to (RE2's measure)."""
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0)
    """The longest metadata string of a committed offset (offset.metadata.max.bytes)."""

    group_queue_events: int = Field(default=20_000, ge=1)
    """Requests of one group that wait for their turn or for others; one more is told to try again."""
    groups_loaded: int = Field(default=50_000, ge=1)
    """Groups that one agent keeps in memory; past it those longest without members or requests go, and if none can, the
    next group's requests are told to try again."""
    group_loads: int = Field(default=4, ge=1)
    """Groups that are read from Postgres at once."""
    group_idle_s: float = Field(default=60.0, gt=0)
    """A group without members leaves memory when nobody asked for it for so long; Postgres keeps it."""
    group_lease_s: float = Field(default=5.0, gt=0)
    """How long an agent answers for a group after it last asked Postgres whether it still coordinates it."""
    group_lease_renew_s: float = Field(default=1.0, gt=0)
    """The pause between two such questions, each for all groups, and between two looks at the ring."""
    group_adopt_s: float = Field(default=60.0, gt=0)
    """The pause between two looks for groups of this agent that have members of which none has come: they may have died
    together with the group's last coordinator."""
    group_topics_s: float = Field(default=3.0, gt=0)
    """The pause between two looks at the topics that groups of the new protocol subscribe to."""
    offset_commit_queue: int = Field(default=20_000, ge=1)
    """OffsetCommit requests of all groups that wait for their statement; one more is told to try again."""
    offset_commit_lanes: int = Field(default=2, ge=1)
    """Statements for offset commits in flight at once, each for other groups."""
    offset_commits_per_statement: int = Field(default=1_000, ge=1)
    """OffsetCommit requests that share one statement."""
    offset_partitions_per_statement: int = Field(default=20_000, ge=1)
    """Partitions in one such statement; a single request with more still goes."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.group_lease_renew_s >= self.group_lease_s:
            raise ValueError(
                f"TIDELOG_GROUP_LEASE_S ({self.group_lease_s}) must be longer than TIDELOG_GROUP_LEASE_RENEW_S "
                f"({self.group_lease_renew_s})"
            )
        return self
