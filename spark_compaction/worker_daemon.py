"""The process from which Spark forks its Python workers, with the tasks' modules imported once instead of once per
worker.

Importing numba, pyarrow and pandas takes seconds of a core; most jobs take less. Spark starts it by
`spark.python.daemon.module`.
"""

import pyspark.daemon

import spark_compaction.rewrite_tasks
import spark_compaction.tasks

PRELOADED = (spark_compaction.tasks, spark_compaction.rewrite_tasks)

if __name__ == "__main__":
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
