"""The settings of Spark's data source. Each is an environment variable of the driver, and an option of the
reader or writer: `TIDELOG_SOURCE_TASK_BYTES` is `.option("sourceTaskBytes", ...)`.
"""

from pydantic import Field

from spark_source.http_login import HttpLoginSettings
from storage.encryption.settings import EncryptionSettings
from storage.stores.object_store import StoreSettings

_MEBIBYTE = 1 << 20


class SourceSettings(StoreSettings, HttpLoginSettings, EncryptionSettings):
    store_url: str = ""
    """The bucket: s3://bucket/prefix?endpoint=http://..., as the agents use it."""
    http_url: str = ""
    """HTTP addresses of agents, with commas between them; the option is also called `servers`."""
    bootstrap: str = ""
    """Kafka addresses of agents, for the sink; by default the agents at `http_url` name them."""

    source_task_bytes: int = Field(default=64 * _MEBIBYTE, ge=1)
    """The bytes of objects that one Spark task of the data source `tidelog` reads."""
    source_prefetch: int = Field(default=8, ge=1)
    """How many objects a task of the data source reads ahead of the one it decodes."""
    source_page_pieces: int = Field(default=1000, ge=1, le=1000)
    """The most coordinates that the data source asks an agent for in one request."""
    source_max_pieces: int = Field(default=1_000_000, ge=1)
    """The most coordinates of one query or micro-batch that Spark's driver holds."""
    source_http_timeout_s: float = Field(default=20.0, gt=0)
    """The longest that the data source waits for one answer of an agent."""
    source_attempts: int = Field(default=5, ge=1)
    """How often the data source asks agents, and how often it looks again for an object that is gone."""
    source_retry_base_s: float = Field(default=0.2, gt=0)
    """The wait before attempt n is random between 0 and this times 2^n."""
    source_flush_timeout_s: float = Field(default=120.0, gt=0)
    """The longest that a task of the sink waits for the last acknowledgement."""
