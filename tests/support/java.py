"""The Java Kafka clients and command line tools, run as a person would: one `java` command per use.

Their jars come from Maven Central by name, through the Apache Ivy that ships inside pyspark, once, into
`.cache/java-clients`; compression codecs and logging are those of Spark. `java_clients.xml` in
this folder names the versions.
"""

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyspark
import pytest

from tests.support.maven import retrieve
from tests.support.once import made_once

_REPOSITORY = Path(__file__).parents[2]
_FOLDER = _REPOSITORY / ".cache" / "java-clients"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_FROM_SPARK = (
    "lz4-java",
    "zstd-jni",
    "snappy-java",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "jackson-core-2",
    "jackson-databind",
    "jackson-annotations",
    "scala-library",
)
_MODULES = Path(__file__).with_name("java_clients.xml")
_DOWNLOAD_TIMEOUT_S = 300
_TOOLS = "org.apache.kafka.tools."
# The tools run for seconds. Their start costs most, and they share two cores with the agents that they
# ask.
SHORT_PROGRAM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
JVM_OPTIONS = (*SHORT_PROGRAM, "-Xshare:auto", "-Xmx256m")


class JavaFailed(Exception):
    """A Java program ended with a status other than 0. The message has all its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """Runs classes of the Kafka clients, or of a source file of ours."""

    folder: Path
    classpath: str
    tool_classes: Path
    """The JVM's archive of the classes that the tools load. It halves the CPU of a start. A JVM that cannot
    use it ignores it.
    """
    client_classes: Path
    """The same of consumers."""

    def command(self, main: str, arguments: Sequence[str] = ()) -> list[str]:
        archive = self.tool_classes if main.startswith(_TOOLS) else self.client_classes
        return [
            "java",
            *JVM_OPTIONS,
            f"-XX:SharedArchiveFile={archive}",
            "-cp",
            self.classpath,
            main,
            *arguments,
        ]

    def run(self, main: str, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = 120) -> str:
        """What `main` printed on its standard output. Raises `JavaFailed`, also after `timeout_s`."""
        command = self.command(main, arguments)
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise JavaFailed(
                f"{main} {arguments} took over {timeout_s} s and said {late.stdout!r} {late.stderr!r}"
            ) from late
        if done.returncode != 0:
            raise JavaFailed(f"{main} {arguments} ended with {done.returncode}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def tool(self, name: str, *arguments: str, timeout_s: float = 120) -> str:
        """One of `org.apache.kafka.tools`."""
        return self.run(f"{_TOOLS}{name}", arguments, timeout_s=timeout_s)

    def compiled(self, source: Path) -> "Java":
        """Compiles `source` and adds it to the class path, once per content."""
        content = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
        compile_into = partial(_compile, source, self.classpath)
        classes = made_once(self.folder / f"{source.stem}-{content}", compile_into)
        return replace(self, classpath=f"{self.classpath}:{classes}")


def _compile(source: Path, classpath: str, classes: Path) -> None:
    _run(["javac", "-cp", classpath, "-d", str(classes), str(source)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise JavaFailed(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )


def _archived(classpath: str, main: str, arguments: Sequence[str], archive: Path) -> None:
    """The classes that a program loads if it finds no broker and gives up."""
    command = [
        "java",
        *JVM_OPTIONS,
        f"-XX:ArchiveClassesAtExit={archive}",
        "-cp",
        classpath,
        main,
        *arguments,
    ]
    subprocess.run(command, capture_output=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    archive.touch()


def jars_of(modules: Path) -> Path:
    """The folder of the jars that an Ivy file names, downloaded if need be."""
    return retrieve(modules, _FOLDER / hashlib.sha256(modules.read_bytes()).hexdigest()[:16])


def classpath_of(jars: Path) -> str:
    """The class path of these jars and of those that come from Spark."""
    from_spark = [str(jar) for name in _FROM_SPARK for jar in sorted(_SPARK_JARS.glob(f"{name}*.jar"))]
    return ":".join([f"{jars}/*", *from_spark])


@pytest.fixture(scope="session")
def java() -> Java:
    """The Kafka clients for Java, downloaded if need be."""
    jars = jars_of(_MODULES)
    classpath = classpath_of(jars)
    nobody = ("--bootstrap-server", "127.0.0.1:1")
    asks = (*nobody, "--list", "--command-config", str(Path(__file__).with_name("impatient.properties")))
    reads = (*nobody, "--topic", "none", "--messages", "1", "--timeout", "300")
    return Java(
        folder=_FOLDER,
        classpath=classpath,
        tool_classes=made_once(
            jars.with_suffix(".tools.jsa"), partial(_archived, classpath, f"{_TOOLS}TopicCommand", asks)
        ),
        client_classes=made_once(
            jars.with_suffix(".clients.jsa"),
            partial(_archived, classpath, f"{_TOOLS}ConsumerPerformance", reads),
        ),
    )
