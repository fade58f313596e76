"""The settings of `tidelog recover`: how much it reads at once, and how far it goes back."""

from pydantic import Field

from storage.settings import Settings


class RecoverySettings(Settings):
    recovery_young_margin_s: float = Field(default=960.0, ge=0)
    """An object uploaded up to this long before the last journal entry may have been committed after it.
    Must be longer than the agents' reservation lease.
    """
    recovery_requests: int = Field(default=16, ge=1)
    """Requests to the store at once. As many whole segments are in memory."""
    recovery_undelete: bool = True
    """Whether to look for missing objects among the older versions that the bucket keeps."""
    ownership_ratchet_s: float = Field(default=60.0, gt=0)
    """The agents' setting: a former owner notices a take-over within twice this time."""
    recovery_page: int = Field(default=10_000, ge=1)
    """Objects of the bucket's listing written to the database at a time."""
    recovery_holes_per_step: int = Field(default=200, ge=1)
    """Ranges of offsets without an object that are replaced in one transaction."""
    recovery_run_bytes: int = Field(default=4_194_304, ge=1024)
    """Runs that replace others are cut at about this length."""
    recovery_sequence_margin: int = Field(default=1_000_000, ge=1)
    """How far node ids and coordinator epochs jump ahead. Must be more than were given out since the last
    journal entry.
    """
    recovery_statement_timeout_s: float = Field(default=3_600.0, gt=0)
    """Postgres ends a statement of the recovery that takes longer than this."""
    recovery_listed: int = Field(default=200, ge=0)
    """Partitions, ranges and segments that the report names. It counts the rest."""
