"""Finds Java for Spark, and says what to do if there is none."""

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST_JAVA = 17
_TIMEOUT_S = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissing(Exception):
    """Spark cannot start here; the message names the fix."""


def require_java() -> None:
    """Raises JavaMissing unless the Java that Spark would start is new enough."""
    java = _java()
    if java is None:
        raise JavaMissing(
            f"no Java found. Spark needs Java {OLDEST_JAVA} or newer: install it, or point JAVA_HOME at one."
        )
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(
            f"{java} does not run: {error}. Spark needs Java {OLDEST_JAVA} or newer; checked JAVA_HOME "
            "and PATH."
        ) from error
    version = java_version(answer.stderr + answer.stdout)
    if version is None or version < OLDEST_JAVA:
        found = f"Java {version}" if version else "a Java of unknown version"
        raise JavaMissing(
            f"{java} is {found}. Spark needs Java {OLDEST_JAVA} or newer: install it, or point JAVA_HOME "
            "at one."
        )


def java_version(text: str) -> int | None:
    """Returns the feature release in the output of `java -version`; 8 for "1.8.0_402"."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")  # as the script that starts the JVM for PySpark reads it
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.is_file() else None
    return shutil.which("java")
