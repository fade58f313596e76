"""The settings of the housekeeper: how often each job runs, how much it does per step, and how long things
wait before they go.

Promises that settings which depend on each other fit: see the checks at the end.
"""

from typing import Self

from pydantic import Field, model_validator

from storage.settings import Settings


class HousekeeperSettings(Settings):
    retention_interval_s: float = Field(default=60.0, gt=0)
    """The pause between two passes of retention over all partitions."""
    retention_partitions_per_step: int = Field(default=200, ge=1)
    """Partitions looked at in one statement."""
    retention_runs_per_step: int = Field(default=500, ge=1)
    """Runs deleted in one transaction. Its partitions take no commit until it ends."""
    retention_partitions_at_once: int = Field(default=50, ge=1)
    """Partitions whose runs are deleted in one transaction."""

    topic_sweep_interval_s: float = Field(default=10.0, gt=0)
    """The pause between two searches for the remains of deleted topics."""
    topic_sweep_partitions_per_step: int = Field(default=100, ge=1)
    """Partitions of deleted topics, and histories, swept in one step."""
    topic_sweep_rows_per_step: int = Field(default=2000, ge=1)
    """Runs, and producers' states, deleted in one step."""

    producer_expiry_interval_s: float = Field(default=3600.0, gt=0)
    """The pause between two searches for producers that have not written for long."""
    producer_expiry_s: float = Field(default=7 * 86_400.0, gt=0)
    """An idempotent producer that wrote nothing to a partition for this long is forgotten there."""
    producers_per_step: int = Field(default=2000, ge=1)
    """Producers' states forgotten in one statement."""

    transaction_timeout_interval_s: float = Field(default=5.0, gt=0)
    """The pause between two searches for transactions whose timeout is over. They are aborted."""
    transactions_per_step: int = Field(default=100, ge=1)
    """Transactions aborted in one step."""
    transactional_id_expiry_interval_s: float = Field(default=3600.0, gt=0)
    """The pause between two searches for transactional ids that were not used for long, and for aborted
    transactions that retention has passed.
    """
    transactional_id_expiry_s: float = Field(default=7 * 86_400.0, gt=0)
    """A transactional id, or a sink of Spark, that was not used for this long is forgotten (Kafka's
    transactional.id.expiration.ms).
    """

    offsets_retention_minutes: int = Field(default=7 * 24 * 60, ge=1)
    """A group's offsets are forgotten when it has had no members for this long (Kafka's
    offsets.retention.minutes). If no member ever joined, they are forgotten this long after their commit.
    """
    offset_expiry_interval_s: float = Field(default=600.0, gt=0)
    """The pause between two passes over all committed offsets (offsets.retention.check.interval.ms)."""
    offsets_per_step: int = Field(default=2000, ge=1)
    """Committed offsets read in one transaction, which locks the groups that have expired ones."""
    idle_groups_interval_s: float = Field(default=600.0, gt=0)
    """The pause between two passes over all groups that removes empty ones."""
    idle_group_grace_s: float = Field(default=600.0, ge=0)
    """How long a group without members and offsets stays after its last member left, or after an agent last
    asked for it.
    """
    groups_per_step: int = Field(default=1000, ge=1)
    """Groups read in one transaction."""

    ownership_ratchet_s: float = Field(default=60.0, gt=0)
    """The pause between two proofs that this database owns the bucket. Each writes the object
    `<cluster>/ownership`. If none succeeded for twice as long, nothing is merged or deleted.
    """

    dooming_interval_s: float = Field(default=10.0, gt=0)
    """The pause between two searches for expired reservations and for garbage whose grace period is over."""
    database_outage_after_s: float = Field(default=60.0, gt=0)
    """If the database could not be read for this long, that counts as an outage, and dooming then pauses for
    one reservation lease.
    """
    reservation_lease_s: float = Field(default=900.0, gt=0)
    """The agents' reservation lease. Dooming pauses for this long after an outage, so that agents can commit
    what they hold.
    """
    failover_hold_s: float = Field(default=86_400.0, ge=0)
    """How long nothing is doomed after a failover of Postgres, so that a person can look at objects that a
    lost commit named.
    """

    garbage_interval_s: float = Field(default=30.0, gt=0)
    """The pause between two passes for segments that nothing refers to, and between two rounds of deletions.
    """
    garbage_segments_per_step: int = Field(default=1000, ge=1)
    """Segments checked, doomed or deleted in one step."""
    garbage_grace_s: float = Field(default=600.0, ge=0)
    """How long an unreferenced object waits before it is deleted. Must be more than twice the age of
    coordinates that agents may use.
    """
    late_write_window_s: float = Field(default=3600.0, ge=0)
    """How late a stalled or hedged upload may still arrive. After this time, a deleted object is deleted once
    more and forgotten.
    """
    outcome_retention_s: float = Field(default=3600.0, ge=0)
    """How long the outcome of a commit stays known, and so the longest tolerated pause of an agent. A later
    repeat of the commit is refused.
    """
    tombstone_partition_s: float = Field(default=600.0, ge=1)
    """The time span of one partition of tombstones or outcomes. A partition is dropped as a whole."""
    partition_lock_timeout_ms: int = Field(default=500, ge=1)
    """How long making or dropping such a partition waits for a lock. Readers of the table wait behind it.
    """
    history_reader_grace_s: float = Field(default=86_400.0, ge=0)
    """How long history files that no snapshot names any more stay for outside readers."""

    merge_target_s: float = Field(default=300.0, gt=0)
    """The backlog is merged within about this time: the effort follows the backlog."""
    merge_max_bytes_per_s: float = Field(default=67_108_864, gt=0)
    """The most an agent copies per second when it merges, however long the backlog is."""
    merge_fan_in: int = Field(default=16, ge=2)
    """Uploads, or earlier merges, merged at a time. Of small ones, up to sixteen times as many."""
    merge_tiers: int = Field(default=3, ge=0, le=8)
    """How often merging may copy a byte, which bounds the write amplification. 0: nothing is merged.
    """
    merge_object_bytes: int = Field(default=33_554_432, ge=1024)
    """The most bytes of runs in a merged object. One object is read, checked and uploaded at a time."""
    merge_run_bytes: int = Field(default=4_194_304, ge=1024)
    """Runs are merged up to this length. A run of half this length is not merged any more."""
    merge_memory_bytes: int = Field(default=75_497_472, ge=4096)
    """Memory for merging: an object's bytes as read, with at most a quarter of dead bytes between, and as
    uploaded.
    """
    merge_requests: int = Field(default=4, ge=1)
    """Ranges read from the store at once."""
    merge_settle_s: float = Field(default=60.0, ge=0)
    """Uploads are merged when they are this old. Readers at the tail have passed them by then."""
    merge_segments_per_claim: int = Field(default=1024, ge=2)
    """Segments read and claimed for one merge."""
    merge_runs_per_step: int = Field(default=50_000, ge=1)
    """Runs planned at a time, in memory."""
    merge_runs_per_publish: int = Field(default=500, ge=1)
    """Runs replaced in one transaction. Their partitions take no commit until it ends."""
    merge_job_s: float = Field(default=30.0, gt=0)
    """A merge that takes longer ends after its current object. The rest is claimed again later, after more
    urgent merges.
    """
    merge_lease_s: float = Field(default=60.0, gt=0)
    """If the agent of a merge died, another agent merges its segments after this long."""
    merge_interval_s: float = Field(default=5.0, gt=0)
    """The pause between two searches for segments to merge."""

    clean_interval_s: float = Field(default=15.0, gt=0)
    """The pause between two searches for partitions of compacted topics that are due
    (log.cleaner.backoff.ms)."""
    clean_partitions_per_step: int = Field(default=1000, ge=1)
    """Partitions of compacted topics looked at in one step."""
    clean_keys_bytes: int = Field(default=67_108_864, ge=1024)
    """Memory for the keys of a cleaning, at some 35 bytes per key (log.cleaner.dedupe.buffer.size). More keys
    take more passes over the log."""
    clean_lease_s: float = Field(default=60.0, gt=0)
    """If the agent of a cleaning died, another agent begins it again after this long."""

    restore_horizon_s: float = Field(default=3600.0, ge=0)
    """An unreferenced object stays at least this long, so that a database restored to a time within it finds
    every object. The journal is kept as long.
    """
    journal_interval_s: float = Field(default=3.0, gt=0)
    """The pause between two entries of the commit journal in the bucket. A lost database costs at most this.
    """
    journal_heartbeat_s: float = Field(default=60.0, gt=0)
    """An entry is written after this long, even if nothing was committed."""
    journal_segments_per_pass: int = Field(default=100_000, ge=1)
    """If more segments were committed since the last entry, a checkpoint is written instead."""
    journal_batches_per_entry: int = Field(default=50_000, ge=1)
    """Batches whose coordinates are in one entry, in memory. Further ones go into entries of the same moment.
    """
    journal_timeout_s: float = Field(default=60.0, gt=0)
    """How long it may take to read one entry from Postgres and to write it."""
    checkpoint_pace: float = Field(default=20.0, ge=0)
    """The next checkpoint waits at least this many times as long as the last one took."""
    checkpoint_interval_s: float = Field(default=600.0, gt=0)
    """The pause between two checkpoints of the journal. If the entries outgrow the last checkpoint, the next
    is written earlier. At most half of `restore_horizon_s`.
    """
    checkpoint_part_bytes: int = Field(default=4_194_304, ge=1024)
    """Rows in one part of a checkpoint, before compression. Twice as much is in memory at a time."""
    checkpoint_timeout_s: float = Field(default=1800.0, gt=0)
    """How long it may take to read one checkpoint from Postgres and to write it. Postgres keeps rows that are
    deleted meanwhile."""

    job_lease_s: float = Field(default=60.0, gt=0)
    """If the housekeeper of a job died, another takes the job over after this long."""
    job_run_s: float = Field(default=20.0, gt=0)
    """A job that is not done after this long pauses until its next turn, and continues where it stopped."""
    job_retry_s: float = Field(default=1.0, gt=0)
    """The pause after a failure of a job. It doubles with each further failure, up to the job's interval."""
    job_patience: int = Field(default=8, ge=1)
    """An agent that finds a job done by others skips up to this many turns. Fewer in small clusters."""

    observation_interval_s: float = Field(default=5.0, gt=0)
    """The pause between two measurements of what waits in the cluster. One agent measures, and each agent
    reads the result as often.
    """
    observation_stale_s: float = Field(default=60.0, gt=0)
    """An older measurement is ignored, and nothing is merged because of it."""
    observation_segments: int = Field(default=1000, ge=1)
    """Segments of each state that a measurement counts one by one. Beyond it, Postgres estimates their
    number.
    """
    observation_candidates: int = Field(default=20_000, ge=1)
    """Candidates for merging that a measurement adds up in each tier. It estimates the rest."""

    @property
    def committed_grace_s(self) -> float:
        """How long an object stays after its last reference is gone."""
        return max(self.garbage_grace_s, self.restore_horizon_s)

    @property
    def history_grace_s(self) -> float:
        """How long a history file stays after the last snapshot that named it."""
        return max(self.history_reader_grace_s, self.restore_horizon_s)

    @model_validator(mode="after")
    def _waits_fit(self) -> Self:
        for name in ("garbage_grace_s", "late_write_window_s", "history_reader_grace_s"):
            if (grace_s := getattr(self, name)) <= 2 * self.ownership_ratchet_s:
                raise ValueError(
                    f"TIDELOG_{name.upper()} ({grace_s:g}) must be more than twice "
                    "TIDELOG_OWNERSHIP_RATCHET_S "
                    f"({self.ownership_ratchet_s:g}): an owner that was replaced would delete before it "
                    "knows. Raise the former or lower the latter"
                )
        if self.job_run_s * 2 > self.job_lease_s:
            raise ValueError(
                f"TIDELOG_JOB_RUN_S ({self.job_run_s}) must be at most half of TIDELOG_JOB_LEASE_S "
                f"({self.job_lease_s})"
            )
        if self.observation_interval_s * 2 > self.observation_stale_s:
            raise ValueError(
                f"TIDELOG_OBSERVATION_INTERVAL_S ({self.observation_interval_s}) must be at most half of "
                f"TIDELOG_OBSERVATION_STALE_S ({self.observation_stale_s})"
            )
        if self.merge_object_bytes * 9 // 4 > self.merge_memory_bytes:
            raise ValueError(
                f"TIDELOG_MERGE_MEMORY_BYTES ({self.merge_memory_bytes}) must be at least 2.25 times "
                f"TIDELOG_MERGE_OBJECT_BYTES ({self.merge_object_bytes})"
            )
        if self.merge_run_bytes > self.merge_object_bytes:
            raise ValueError(
                f"TIDELOG_MERGE_RUN_BYTES ({self.merge_run_bytes}) must not exceed "
                "TIDELOG_MERGE_OBJECT_BYTES "
                f"({self.merge_object_bytes})"
            )
        if 0 < self.restore_horizon_s < self.checkpoint_interval_s * 2:
            raise ValueError(
                f"TIDELOG_CHECKPOINT_INTERVAL_S ({self.checkpoint_interval_s}) must be at most half of "
                f"TIDELOG_RESTORE_HORIZON_S ({self.restore_horizon_s}): objects would be deleted that the"
                " last checkpoint refers to"
            )
        if self.journal_interval_s > self.journal_heartbeat_s:
            raise ValueError(
                f"TIDELOG_JOURNAL_INTERVAL_S ({self.journal_interval_s}) must not exceed "
                "TIDELOG_JOURNAL_HEARTBEAT_S "
                f"({self.journal_heartbeat_s})"
            )
        if self.dooming_interval_s * 2 > self.database_outage_after_s:
            raise ValueError(
                f"TIDELOG_DOOMING_INTERVAL_S ({self.dooming_interval_s}) must be at most half of "
                f"TIDELOG_DATABASE_OUTAGE_AFTER_S ({self.database_outage_after_s}): each pause would "
                "count as an outage"
            )
        return self
