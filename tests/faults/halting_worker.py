"""The Python daemon of executors, whose tasks can be halted at the named points (fault_points.py)."""

import pyspark.daemon

from spark_compaction.worker_daemon import make_tasks_cheap
from tests.faults.fault_points import install

if __name__ == "__main__":
    install("executor")
    make_tasks_cheap()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
