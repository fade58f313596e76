"""The settings of an erasure."""

from pydantic import Field

from spark_compaction.settings import CompactionSettings


class ErasureSettings(CompactionSettings):
    erase_requests: int = Field(default=4, ge=1)
    """Runs that an erasure reads and decodes at once."""
    erase_object_bytes: int = Field(default=33_554_432, ge=1024)
    """Objects whose runs an erasure moves out at a time, but at least one. So much and about twice as much
    again is in memory."""
    erase_page_rows: int = Field(default=500, ge=1)
    """Runs, or segments, that an erasure asks the sequencer for at a time."""
    erase_files_per_job: int = Field(default=1000, ge=1)
    """The most history files that one Spark job of an erasure looks into."""
    erase_poll_s: float = Field(default=1.0, gt=0)
    """How often an erasure looks whether what it waits for has gone."""
    erase_timeout_s: float = Field(default=7200.0, gt=0)
    """An erasure that waits longer ends with an error; the same command goes on where it was."""
