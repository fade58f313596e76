"""`python -m tidelog.fetch_jars [FOLDER]`: fetches the jars that Spark needs into Ivy's local cache, and
copies them into FOLDER.

An image that ran it when it was built starts Spark without a network. With the jars in Spark's own folder,
the executors of a cluster have them as well, and TIDELOG_SPARK_PACKAGES can be empty.
"""

import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from tidelog.process.environment import Environment


def fetch_jars(settings: CompactionSettings, folder: Path | None) -> list[Path]:
    """Starts Spark, which resolves the packages. Returns the copies."""
    context = spark_session(settings).sparkContext
    try:
        named = context.getConf().get("spark.jars", "") or ""
        jars = [Path(urlsplit(jar).path) for jar in named.split(",") if jar]
        return [Path(shutil.copy2(jar, folder)) for jar in jars] if folder is not None else []
    finally:
        stop_spark()


if __name__ == "__main__":
    asked = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for copy in fetch_jars(Environment.of_process().read(CompactionSettings), asked):
        print(copy)  # noqa: T201
