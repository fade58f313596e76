"""Runs Spark for commands: turns its errors into errors that a person can act on, and ends it in time."""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import SequencerUnavailable
from sequencer.topics.topics import UnknownTopic
from spark_compaction.java import JavaMissing
from spark_compaction.job import SparkJobFailed
from spark_compaction.manifest import ManifestRefused
from spark_compaction.session import SparkUnavailable, refuse_remote, stop_spark
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import QueryFailed
from storage.stores.object_store import StoreUnavailable
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.process.environment import Environment
from tidelog.process.settings import ClientSettings

# PySpark logs a failed query with its whole Java stack; the error itself says the same in a line.
_QUERY_LOGGER = "SQLQueryContextLogger"


@contextmanager
def spark_command(environment: Environment, *needed: str) -> Iterator[CompactionSettings]:
    """The settings, if the cluster is known and the `needed` ones are set. Spark's JVM ends with the
    process.
    """
    found = find_cluster(environment)
    client = found.read(ClientSettings)
    for name in needed:
        require(client, name)
    settings = found.read(CompactionSettings)
    atexit.register(stop_spark)
    PySparkLogger.getLogger(_QUERY_LOGGER).disabled = True  # of PySpark's class, which has other fields
    try:
        refuse_remote(settings)
        yield settings
    except UnknownTopic as unknown:
        raise UserError(str(unknown), "`tidelog topics list` shows those there are.") from None
    except ManifestRefused as refused:
        raise UserError(
            f"{refused}.", "Nothing was published; `tidelog doctor` says more about the bucket."
        ) from None
    except SparkJobFailed as failed:
        raise UserError(
            f"{str(failed).rstrip('.')}.",
            "Nothing was published, and the next run starts over. `tidelog doctor` checks the bucket.",
        ) from None
    except (
        QueryFailed,
        SparkUnavailable,
        JavaMissing,
        SequencerUnavailable,
        StoreUnavailable,
        WrongStore,
        ValueError,
    ) as failed:
        raise UserError(str(failed)) from None
