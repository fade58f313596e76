"""The settings of `tidelog sql`."""

from pydantic import Field

from spark_compaction.settings import CompactionSettings
from spark_source.http_login import HttpLoginSettings

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30


class SqlSettings(CompactionSettings, HttpLoginSettings):
    client_timeout_s: float = Field(default=30.0, gt=0)
    """The longest a command waits for an agent."""

    sql_timeout_s: float = Field(default=3600.0, gt=0)
    """The longest that a statement of `tidelog sql` runs."""
    sql_duckdb_bytes: int = Field(default=4 * _GIBIBYTE, ge=0)
    """`tidelog sql --engine auto` asks DuckDB if a statement reads at most so many bytes of the bucket."""
    sql_duckdb_files: int = Field(default=20_000, ge=0)
    """`tidelog sql --engine auto` asks DuckDB if the tables of a statement have at most so many files."""
    sql_memory_bytes: int = Field(default=_GIBIBYTE, ge=64 * _MEBIBYTE)
    """The memory that DuckDB uses; beyond it, it writes to a temporary directory."""
    sql_spill_bytes: int = Field(default=16 * _GIBIBYTE, ge=0)
    """The most that DuckDB writes to that directory."""
    sql_fresh_bytes: int = Field(default=2 * _GIBIBYTE, ge=0)
    """The most bytes of the log that `tidelog sql --fresh` reads for DuckDB; Spark has no such limit."""
