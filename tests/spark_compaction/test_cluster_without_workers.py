"""Spark that has no machine to run on ends a command with a sentence."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.stores.object_store import StoreSettings
from tests.spark_compaction.log import Log, one, records
from tests.support.spark_cluster import spark_cluster

_PATIENCE_S = 120.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def environment(database_url: str, store_url: str, store_settings: StoreSettings) -> dict[str, str]:
    assert store_settings.s3_access_key is not None
    assert store_settings.s3_secret_key is not None
    return {
        **os.environ,
        "TIDELOG_DATABASE_URL": database_url,
        "TIDELOG_STORE_URL": store_url,
        "TIDELOG_S3_ACCESS_KEY": store_settings.s3_access_key,
        "TIDELOG_S3_SECRET_KEY": store_settings.s3_secret_key.get_secret_value(),
        "TIDELOG_SPARK_PACKAGES": "",
        "TIDELOG_HISTORY_POLL_S": "0.1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def tidelog(environment: dict[str, str], said: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", *arguments], env=environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


async def test_a_cluster_without_workers_fails_the_job_after_its_time(
    log: Log, environment: dict[str, str], tmp_path: Path
) -> None:
    await log.topic("orders", retention_ms="-1")
    await log.write("orders", one(0, *records(10)))
    said = tmp_path / "said"
    with spark_cluster(tmp_path / "cluster", workers=0) as cluster:
        short = {"TIDELOG_SPARK_MASTER": cluster.master, "TIDELOG_SPARK_EXECUTOR_WAIT_S": "3"}
        with tidelog(environment | short, said, "compact") as command:
            status = await asyncio.to_thread(command.wait, _PATIENCE_S)

    assert status == 1
    text = " ".join(said.read_text().split())
    assert f"Spark's cluster at {cluster.master} had no executor for 3 s" in text
    assert "Traceback" not in text
