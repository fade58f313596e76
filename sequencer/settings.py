"""How this process talks to Postgres. Every number is a setting, and says what it bounds."""

from pydantic import Field

from storage.settings import Settings


class SequencerSettings(Settings):
    """`TIDELOG_DATABASE_POOL_SIZE=20` and so on."""

    database_pool_size: int = Field(default=5, ge=2)
    """Most connections of this process to Postgres for clients' requests. Leases, housekeeping and commits
    have their own.
    """

    database_pool_reads: int = Field(default=2, ge=1)
    """How many of these connections writes leave to reads, which wait for no standby. At least one is left to
    writes.
    """

    database_lease_connections: int = Field(default=2, ge=2)
    """Connections for leases and reservations. Writes, which may wait for a standby, leave one of them to
    leases.
    """

    database_housekeeping_connections: int = Field(default=3, ge=2)
    """Connections for jobs. Writes leave one of them to reads."""

    database_pool_timeout_s: float = Field(default=5.0, gt=0)
    """How long a call waits for a free connection before it fails as unavailable."""

    database_pool_max_waiting: int = Field(default=1024, ge=1)
    """Most calls that wait for a connection of one kind at a time. Past it, calls of the client that has most
    waiting fail at once as unavailable.
    """

    database_connect_timeout_s: int = Field(default=5, ge=2)
    """How long one attempt to connect may take."""

    database_statement_timeout_ms: int = Field(default=15_000, ge=100)
    """Postgres ends a statement that takes longer, including its waits for locks."""

    database_answer_timeout_s: float = Field(default=30.0, gt=0)
    """How long to wait for a statement or a whole transaction if Postgres itself ends nothing, because its
    process or its disk froze. Must be longer than `database_statement_timeout_ms`. Ending the connection
    takes up to ten seconds more. The wait for a commit that waits for a synchronous standby has no bound.
    """

    database_idle_in_transaction_timeout_ms: int = Field(default=15_000, ge=100)
    """Postgres ends a transaction whose process froze in it, because its locks would stop all others."""

    database_keepalive_idle_s: int = Field(default=5, ge=1)
    """A connection that is silent for this long is probed. Three unanswered probes, one a second, end it."""

    database_recheck_s: float = Field(default=10.0, gt=0)
    """How often, plus or minus a fifth, a new connection checks whether the address leads to another
    Postgres. Each costs Postgres about 4 ms of CPU: 1,000 agents with 10 s take 0.4 of a core.
    """

    database_confirm_gap_s: float = Field(default=1.0, gt=0)
    """Least time between two such connections that are made because a reader knows more than Postgres.
    """

    database_durability_check_s: float = Field(default=3.0, gt=0)
    """How often Postgres' durability settings are checked, in addition to the check in every commit: for
    /ready, and for rarer writes.
    """

    standbys_expected: bool = False
    """Whether Postgres has standbys. Nothing is acknowledged, and the agent is not ready, while
    `synchronous_standby_names` is empty."""

    @property
    def most_connections(self) -> int:
        """Connections of one process, including the one for commits, without short-lived ones."""
        return (
            1
            + self.database_pool_size
            + self.database_lease_connections
            + self.database_housekeeping_connections
        )


class MigrationSettings(Settings):
    migration_lock_timeout_ms: int = Field(default=500, ge=1)
    """How long a migration waits for a lock, while commits wait behind it. Then it lets them pass and tries
    again.
    """
    migration_pause_s: float = Field(default=1.0, gt=0)
    """The pause before it tries again. Each further pause is twice as long."""
    migration_longest_pause_s: float = Field(default=30.0, gt=0)
    """The longest of these pauses."""
    agent_database_role: str = ""
    """The role that agents and commands connect as, if migrations have a separate one: after its migrations,
    `tidelog migrate` gives it the rights that it needs, and takes all others from it. Empty: no rights
    change.
    """
    migration_patience_s: float = Field(default=3600.0, ge=0)
    """How long a migration tries to get its locks before it gives up."""
