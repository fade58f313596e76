"""Jars from Maven Central by name, once, through the Apache Ivy that ships inside pyspark."""

import shutil
import subprocess
from pathlib import Path

import pyspark

_TIMEOUT_S = 600.0


class DownloadFailed(Exception):
    """The message holds what Ivy said."""


def retrieve(modules: Path, jars: Path) -> Path:
    """`jars`, a folder with what the Ivy file `modules` names; all or nothing, so that one cut short is begun again."""
    if jars.exists():
        return jars
    building = jars.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    building.parent.mkdir(parents=True, exist_ok=True)
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    pattern = f"{building}/[artifact]-[revision].[ext]"
    command = ["java", "-jar", str(ivy), "-cache", f"{jars.parent}/ivy", "-ivy", str(modules), "-retrieve", pattern]
    command += ["-confs", "default"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as missing:
        raise DownloadFailed("There is no `java` on PATH; Java 17 is needed.") from missing
    if done.returncode != 0:
        raise DownloadFailed(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    building.rename(jars)
    return jars
