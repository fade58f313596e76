"""The settings of `tidelog backup`."""

from pydantic import Field

from storage.settings import Settings


class BackupSettings(Settings):
    """When a backup counts as old, and how long `tidelog backup` waits."""

    backup_archive_timeout_s: int = Field(default=60, ge=1)
    """Postgres archives its WAL at least this often. A restore without the bucket's journal loses at most
    this much.
    """
    backup_max_age_s: float = Field(default=129_600.0, gt=0)
    """`tidelog backup status` warns if the last base backup is older."""
    backup_wal_wait_s: float = Field(default=60.0, gt=0)
    """Longest wait for Postgres to archive one WAL file, before a base backup is begun."""
    backup_jobs: int = Field(default=2, ge=1)
    """Uploads at a time while a base backup is taken."""
    backup_keys_file: str | None = None
    """Where Postgres finds the bucket's keys on its machine; by default a file next to the data directory."""
    backup_list_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for the list of backups, or for one connection to Postgres."""
