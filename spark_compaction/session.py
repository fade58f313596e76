"""The Spark session: one JVM per process, quiet, with the catalog `tidelog` if an agent's address is known.

A local Spark listens on loopback alone. Under `spark-submit` the JVM is there already, and every option of
the submit (its master, its `--conf`) overrides the one set here.

Promises:
- `SELECT ... FROM topics.flights` needs no catalog name.
- What the JVM prints goes to a file. Errors quote from it.
- If the JVM dies, or Spark in it stops, the next session starts another one.
- Where the environment asks for a Spark Connect server, no other Spark is started (decision 0132).
- A machine without Java 17 gets an error that says so.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

import psutil
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_compaction.java import require_java
from spark_compaction.settings import CompactionSettings
from storage.stores.object_store import StoreUrl

CATALOG = "tidelog"
NAMESPACE = "topics"
NO_LOGIN: Final[Mapping[str, str]] = MappingProxyType({})
_LOG4J = Path(__file__).with_name("log4j2.properties")
_QUOTED_LINES = 15
_END_TIMEOUT_S = 10.0
_GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
_REMOTE_VARIABLE = "SPARK_REMOTE"
_REMOTE_SCHEME = "sc://"
_starting = threading.Lock()


class SparkUnavailable(Exception):
    """Spark did not start. The message ends with Spark's own."""


def spark_session(settings: CompactionSettings, login: Mapping[str, str] = NO_LOGIN) -> SparkSession:
    """Returns a session of this process's Spark. The first call starts Spark, which ends with the process (or
    `stop_spark`). `login`: the properties by which Iceberg's catalog logs in to the agent.

    The first call's settings decide the Java side and its master. Each session has its own catalog.
    Raises SparkUnavailable or JavaMissing.
    """
    with _starting:
        context = SparkContext._active_spark_context
        if context is not None and not _works(context):
            _forget(context)
            context = None
        context = context or _start(settings)
    session = SparkSession(context).newSession()
    # Not options of the JVM: everybody on a machine can read the arguments of a process.
    for name, value in _catalog(settings, login).items():
        session.conf.set(name, value)
    make_active(session)
    return session


def has_executors(session: SparkSession) -> bool:
    """True if a task could run now. Spark's own list counts the driver too."""
    context = session.sparkContext
    assert context.master is not None
    return is_local(context.master) or context._jsc.sc().getExecutorMemoryStatus().size() > 1


def make_active(session: SparkSession) -> None:
    """Makes `session` the one that the calling thread works in.

    Spark's writer looks for data sources in the thread's active session only. PySpark sets that in the thread
    that starts Spark and in no other.
    """
    assert session._jvm is not None
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def stop_spark() -> None:
    """Ends this process's Spark, if any, and waits for its JVM."""
    with _starting:
        context = SparkContext._active_spark_context
        if context is None:
            return
        if not _works(context):
            _forget(context)
            return
        gateway: Any = context._gateway
        with contextlib.suppress(Py4JError, OSError):  # the JVM has ended
            context.stop()
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait(timeout=30)
        SparkContext._gateway = None
        SparkContext._jvm = None


def refuse_remote(settings: CompactionSettings) -> None:
    """Raises SparkUnavailable if the process is told to use a Spark Connect server."""
    for name, value in (
        (_REMOTE_VARIABLE, os.environ.get(_REMOTE_VARIABLE, "")),
        ("TIDELOG_SPARK_MASTER", settings.spark_master),
    ):
        if value.startswith(_REMOTE_SCHEME):
            raise SparkUnavailable(
                f"{name} names the Spark Connect server {_without_token(value)}, but this command is the "
                f"driver of a Spark job. Unset {name}; to run on that server's cluster, run "
                "tidelog_submit.py under spark-submit."
            )


def _without_token(address: str) -> str:
    """Parameters follow the first semicolon: a token among them."""
    return address.split(";", 1)[0].rstrip("/")


def _works(context: SparkContext) -> bool:
    """False if this process started the JVM, and it has died or Spark in it has stopped."""
    if getattr(context._gateway, "proc", None) is None:
        return True  # the JVM of spark-submit, with which this process ends
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _forget(context: SparkContext) -> None:
    """Ends what is left of a JVM that does not work, and drops what PySpark keeps of it."""
    process: Any = getattr(context._gateway, "proc", None)
    process.kill()
    process.wait(timeout=30)
    if context._accumulatorServer is not None:
        context._accumulatorServer.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _start(settings: CompactionSettings) -> SparkContext:
    refuse_remote(settings)
    require_java()
    # PySpark, and the JVM that it starts, take these from the process's environment alone.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_submitted() or not is_local(settings.spark_master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the cluster's Python may be elsewhere
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAll(list(_spark_conf(settings).items()))
    with tempfile.TemporaryFile(mode="w+b") as said:  # the JVM keeps its own descriptor
        try:
            gateway = launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
            if _is_submitted():
                conf = _submitted_conf(gateway, settings)
            return _without_traces(_without_jars(SparkContext(conf=conf, gateway=gateway)))
        except (PySparkException, Py4JError, OSError) as error:
            raise SparkUnavailable(f"Spark did not start: {error}\n{_last_lines(said)}") from error
        finally:
            if SparkContext._active_spark_context is None:
                _end_launched()


def is_local(master: str) -> bool:
    """True if Spark's executors are threads of this process's JVM."""
    return master.startswith("local")


def _is_submitted() -> bool:
    """True if `spark-submit` started this process. Its JVM is then the driver's."""
    return _GATEWAY_VARIABLE in os.environ


def _submitted_conf(gateway: Any, settings: CompactionSettings) -> SparkConf:
    """The submit's options, and ours where it sets none."""
    SparkContext._ensure_initialized(gateway=gateway)
    conf = SparkConf(_jvm=SparkContext._jvm)
    master = conf.get("spark.master", settings.spark_master)
    assert master is not None
    for name, value in _spark_conf(settings.model_copy(update={"spark_master": master})).items():
        conf.setIfMissing(name, value)
    return conf


def _end_launched() -> None:
    """Ends a JVM that never got a context: after Ctrl-C in between it would run for ever."""
    launched = [
        child
        for child in psutil.Process().children(recursive=True)
        if any("pyspark-shell" in argument for argument in _command_line(child))
    ]
    for child in launched:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(launched, timeout=_END_TIMEOUT_S)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # the process has ended


def _without_jars(context: SparkContext) -> SparkContext:
    """Takes the packages' jars off Python's path. Spark puts them there in case they contain modules.

    Otherwise Python reads their directories before every task: half a second of a core, for 20,000 Java
    classes.
    """
    context._python_includes = [name for name in context._python_includes or () if not name.endswith(".jar")]
    sys.path[:] = [path for path in sys.path if not path.endswith(".jar")]
    return context


def _without_traces(context: SparkContext) -> SparkContext:
    """If the JVM ends, this server would print a traceback of its lost connection."""
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_: None
    return context


def _spark_conf(settings: CompactionSettings) -> dict[str, str]:
    conf = {
        "spark.app.name": "tidelog",
        "spark.master": settings.spark_master,
        "spark.jars.packages": settings.spark_packages,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": settings.spark_timezone,
        "spark.python.daemon.module": "spark_compaction.worker_daemon",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    if is_local(settings.spark_master):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "4",
        }
    return conf


def _catalog(settings: CompactionSettings, login: Mapping[str, str]) -> dict[str, str]:
    """Without an agent's address there is no catalog: compaction does not need one."""
    if not settings.http_url:
        return {}
    prefix = f"spark.sql.catalog.{CATALOG}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": f"{settings.http_url.rstrip('/')}/iceberg",
        f"{prefix}.default-namespace": NAMESPACE,
        # A table is looked up per query, so a session sees what was compacted since.
        f"{prefix}.cache-enabled": "false",
        "spark.sql.defaultCatalog": CATALOG,
        **{f"{prefix}.{name}": value for name, value in login.items()},
    }
    if (
        settings.store_url
        and StoreUrl.parse(settings.store_url).scheme == "s3"
        and settings.s3_access_key
        and settings.s3_secret_key
    ):
        conf[f"{prefix}.s3.access-key-id"] = settings.s3_access_key
        conf[f"{prefix}.s3.secret-access-key"] = settings.s3_secret_key.get_secret_value()
    else:
        # Keys of the agent's STS, if it has one. Otherwise the usual AWS chain's.
        conf[f"{prefix}.header.X-Iceberg-Access-Delegation"] = "vended-credentials"
    return conf


def _last_lines(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_QUOTED_LINES:])
