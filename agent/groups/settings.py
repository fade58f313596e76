"""Settings of consumer groups: options of `tidelog agent` and variables `TIDELOG_<NAME>`. Kafka's name for each is in
its text."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class GroupSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TIDELOG_", use_attribute_docstrings=True, extra="ignore")

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
    group_consumer_max_rebalance_timeout_ms: int = Field(default=1_800_000, ge=1)
    """The longest a member of the new protocol may take to give partitions back."""
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0)
    """The longest metadata string of a committed offset (offset.metadata.max.bytes)."""
