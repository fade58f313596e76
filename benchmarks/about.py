"""The conditions of a run: machine, versions, date."""

import importlib.metadata
import os
import platform
import re
import subprocess
import time
from pathlib import Path

import psutil

from benchmarks.setup import MINIO_VERSION, TANSU_VERSION
from tests.support import apache_kafka
from tidelog.embedded.postgres import POSTGRES_VERSION


def about(rounds: int, seconds: float) -> dict[str, str]:
    return {
        "date": time.strftime("%d %B %Y, %H:%M UTC", time.gmtime()).lstrip("0"),
        "rounds": f"{rounds}, measurements of {seconds:g} s, systems one after another within each round",
        "machine": f"{_processor()}, {os.cpu_count()} cores shared by servers, clients, Postgres and MinIO, "
        f"{psutil.virtual_memory().total / 1e9:.0f} GB of memory, {platform.system()} {platform.release()}",
        "load before the run": f"{os.getloadavg()[0]:.1f}",
        "Tidelog": f"{importlib.metadata.version('tidelog')} ({_commit()}), Python "
        f"{platform.python_version()}, "
        f"embedded Postgres {POSTGRES_VERSION} with fsync",
        "beside it": (
            f"Apache Kafka {apache_kafka.VERSION} (1 GB heap), Tansu {TANSU_VERSION}, MinIO {MINIO_VERSION}"
        ),
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return found[1] if found else platform.processor()


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return done.stdout.strip() or "no commit known"
