"""Runs a `tidelog` command under spark-submit, whose driver it then is:

    spark-submit --master spark://spark-master:7077 tidelog_submit.py history run
    spark-submit --master k8s://... --deploy-mode cluster local:///opt/tidelog/tidelog_submit.py compact

The options of spark-submit (its master, its `--conf`) override Tidelog's own. Promise: the command stops, as
at SIGTERM, when spark-submit is gone. Otherwise it would run on without a Spark.
"""

import os
import signal
import threading
import time

from tidelog.main import main

_POLL_S = 0.5


def _stop_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    main()
