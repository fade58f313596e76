"""The settings of compaction into history, of its TTL and of Spark SQL over it.

Each is also an environment variable (`TIDELOG_SPARK_MASTER`, ...). The settings of the store, the sequencer
and the encryption are inherited, so that one object says how to reach the bucket, the sequencer, the keys of
topics, the catalog and Spark.
"""

from pydantic import Field, SecretStr

from sequencer.settings import SequencerSettings
from storage.encryption.settings import EncryptionSettings
from storage.stores.object_store import StoreSettings

MEBIBYTE = 1 << 20


class CompactionSettings(StoreSettings, SequencerSettings, EncryptionSettings):
    database_url: str = Field(default="", repr=False)
    """The sequencer's Postgres. Only the driver talks to it; executors need the bucket and nothing else."""
    store_url: str = ""
    """The bucket: s3://bucket/prefix?endpoint=http://... or file:///directory, as the agents use it."""
    cluster: str = "tidelog"
    """The first part of every object's key."""
    http_url: str = ""
    """An agent's HTTP address; its /iceberg is the catalog that `tidelog sql` opens."""

    spark_master: str = "local[2,3]"
    """Where Spark runs: here with 2 threads, and a task is tried 3 times."""
    spark_packages: str = (
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0,"
        "org.apache.iceberg:iceberg-aws-bundle:1.11.0"
    )
    """Maven coordinates of Iceberg's Spark runtime; resolved once into Ivy's local cache."""
    spark_driver_memory: str = "1g"
    """The heap of Spark's driver, which in local mode is also the executors'."""
    spark_executor_wait_s: float = Field(default=600.0, gt=0)
    """A job fails after so long without any executor in the cluster. The next round tries again."""
    spark_timezone: str = "UTC"
    """The time zone in which Spark SQL shows timestamps."""
    sql_max_rows: int = Field(default=10_000, ge=1)
    """The most rows that `tidelog sql` shows as a table; csv, json and parquet have all."""

    compact_task_bytes: int = Field(default=64 * MEBIBYTE, ge=1)
    """The bytes of raw runs that one Spark task turns into Parquet."""
    compact_job_bytes: int = Field(default=16 * 1024 * MEBIBYTE, ge=1)
    """The most bytes of raw runs that one round plans, shared evenly by its topics; the next round takes the
    rest.
    """
    compact_round_topics: int = Field(default=100, ge=1)
    """The most topics that one round compacts, all in one Spark stage."""
    compact_job_runs: int = Field(default=50_000, ge=1)
    """The most runs that one job plans."""
    compact_state_keys: int = Field(default=2_000_000, ge=1)
    """The most keys that one job adds to a partition's table of a compacted topic, at about 50 bytes each in
    every task that runs; but at least those of one task.
    """
    compact_prefetch_runs: int = Field(default=8, ge=1)
    """How many runs a task reads ahead of the one it decodes."""
    parquet_row_group_bytes: int = Field(default=8 * MEBIBYTE, ge=1)
    """The Arrow bytes of one row group: what must be read to serve a record of it."""
    parquet_file_bytes: int = Field(default=256 * MEBIBYTE, ge=1)
    """A Parquet file is closed at the first row group's end past this."""
    parquet_merge_files: int = Field(default=8, ge=2)
    """So many small neighbours become one file, up to TIDELOG_PARQUET_FILE_BYTES."""
    parquet_merge_job_bytes: int = Field(default=8 * 1024 * MEBIBYTE, ge=1)
    """The most Parquet bytes that one job merges, but at least one group of neighbours."""
    job_lease_s: float = Field(default=60.0, gt=0)
    """How long a job's hold outlives its last renewal; a killed job keeps others off its topic for no longer.
    """

    history_columns: int = Field(default=1000, ge=1, le=10_000)
    """The most columns that fields of keys and values add to a table, those within structs counted."""
    history_value_bytes: int = Field(default=MEBIBYTE, ge=1)
    """A key or a value larger than this is not parsed into columns."""
    schema_registry_url: str = ""
    """Where the schemas of Avro, Protobuf and JSON Schema are: http://host:8081. Several, with commas, are
    asked in turn. Only the driver asks.
    """
    schema_registry_user: SecretStr | None = None
    """NAME:PASSWORD for the schema registry."""
    schema_registry_timeout_s: float = Field(default=5.0, gt=0)
    """How long one question to the schema registry may take."""
    schema_registry_attempts: int = Field(default=3, ge=1)
    """How often it is asked before the topic waits."""
    schema_registry_job_s: float = Field(default=30.0, gt=0)
    """How long all questions for one job may take."""

    history_poll_s: float = Field(default=5.0, gt=0)
    """How often `tidelog history run` looks which topics are due, if its look is quick."""
    history_ttl_interval_s: float = Field(default=600.0, gt=0)
    """How often `tidelog history run` applies TTL."""
    history_metrics_port: int = Field(default=0, ge=0, le=65535)
    """Where `tidelog history run` serves /metrics; 0: nowhere."""

    history_snapshot_grace_s: float = Field(default=3600.0, ge=0)
    """How long snapshots that are no longer current stay in a table, for readers outside. Their files stay
    longer, by the agents' TIDELOG_HISTORY_READER_GRACE_S.
    """
    ttl_rewrite_bytes: int = Field(default=8 * 1024 * MEBIBYTE, ge=0)
    """The most Parquet bytes that one TTL pass rewrites per topic because only part of a file has expired."""
