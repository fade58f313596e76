"""The process from which Spark forks its Python workers. It imports once what the tasks need.

Importing pyarrow, pandas and pyiceberg takes seconds of a core; most jobs take less. Spark starts this
process by `spark.python.daemon.module`.
"""

import gc
import sys

import pandas
import pyarrow.pandas_compat
import pyspark.daemon

import spark_compaction.rewrite_tasks
import spark_compaction.tasks

PRELOADED = (pandas, pyarrow.pandas_compat, spark_compaction.tasks, spark_compaction.rewrite_tasks)


def make_tasks_cheap() -> None:
    """By default a worker collects garbage after every task, and reads the directories of its path before it.
    Neither needs to visit what was imported here, or the Java classes of a jar: this saves 0.4 s of a core
    per task.
    """
    gc.freeze()
    sys.path[:] = [path for path in sys.path if not path.endswith(".jar")]
    for path in [path for path in sys.path_importer_cache if path.endswith(".jar")]:
        del sys.path_importer_cache[path]


if __name__ == "__main__":
    make_tasks_cheap()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
