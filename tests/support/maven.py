"""Jars from Maven Central by name, once, through the Apache Ivy that ships inside pyspark."""

import subprocess
from functools import partial
from pathlib import Path

import pyspark

from tests.support.once import made_once

_TIMEOUT_S = 600.0


class DownloadFailed(Exception):
    """The message has Ivy's output."""


def retrieve(modules: Path, jars: Path) -> Path:
    """Fills the folder `jars` with what the Ivy file `modules` names. It is all or nothing: an interrupted
    download begins again.
    """
    return made_once(jars, partial(_retrieve, modules, jars.parent / "ivy"))


def _retrieve(modules: Path, cache: Path, jars: Path) -> None:
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    pattern = f"{jars}/[artifact]-[revision].[ext]"
    command = ["java", "-jar", str(ivy), "-cache", str(cache), "-ivy", str(modules), "-retrieve", pattern]
    command += ["-confs", "default"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as missing:
        raise DownloadFailed("There is no `java` on PATH; Java 17 is needed.") from missing
    if done.returncode != 0:
        raise DownloadFailed(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
