"""`tidelog_submit.py` whose process can be halted at the named points (fault_points.py): spark-submit runs
it.
"""

import runpy

from tests.faults.fault_points import install
from tests.support.spark_cluster import SUBMITTED

if __name__ == "__main__":
    install("driver")
    runpy.run_path(str(SUBMITTED), run_name="__main__")
