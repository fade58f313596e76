"""The settings of `tidelog recover`: how much it reads at once, and how far it goes back."""

from pydantic import Field

from storage.settings import Settings


class RecoverySettings(Settings):
    recovery_young_margin_s: float = Field(default=960.0, ge=0)
    """An object uploaded up to so long before the last journal entry may have been committed after it. Longer than
    the agents' reservation lease."""
    recovery_requests: int = Field(default=16, ge=1)
    """Requests to the store at once; as many whole segments are in memory."""
    recovery_undelete: bool = True
    """Whether objects that are missing are looked for among the versions of a bucket that keeps some."""
    ownership_ratchet_s: float = Field(default=60.0, gt=0)
    """As the agents have it: a former owner notices a take-over within two of these."""
    recovery_page: int = Field(default=10_000, ge=1)
    """Objects of the bucket's listing written to the database at a time."""
    recovery_holes_per_step: int = Field(default=200, ge=1)
    """Ranges of offsets without an object that are replaced in one transaction."""
    recovery_run_bytes: int = Field(default=4_194_304, ge=1024)
    """Runs that replace others are cut at about this length."""
    recovery_sequence_margin: int = Field(default=1_000_000, ge=1)
    """How far node ids and coordinator epochs jump ahead: more than were given out since the last journal entry."""
    recovery_statement_timeout_s: float = Field(default=3_600.0, gt=0)
    """Postgres ends a statement of the recovery that takes longer."""
    recovery_listed: int = Field(default=200, ge=0)
    """Partitions, ranges and segments named in the report; the rest is counted."""
