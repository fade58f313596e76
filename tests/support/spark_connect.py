"""A Spark Connect server on loopback, from the pyspark package, which has the server's jar."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.child import child, free_port, wait_until_open
from tests.support.spark_cluster import SPARK_HOME, bare_environment

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_TIMEOUT_S = 180.0


@contextmanager
def spark_connect(directory: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Its address for clients. `environment` is all that it knows of Tidelog."""
    port, log_file = free_port(), directory / "connect.log"
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", _SERVER]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    own = {**bare_environment(), "PYSPARK_DRIVER_PYTHON": sys.executable, **environment}
    with child([*command, "spark-internal"], log_file, own) as process:
        wait_until_open(process, port, _START_TIMEOUT_S, log_file)
        yield f"sc://127.0.0.1:{port}"
