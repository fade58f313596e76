"""Readers without own keys: PyIceberg and Spark read a real table of an agent, with keys of MinIO's STS."""

import asyncio
import itertools

import pytest
from pydantic import SecretStr
from pyiceberg.catalog.rest import RestCatalog

from sequencer.client import Sequencer
from spark_compaction.settings import CompactionSettings
from spark_compaction.sql import query
from storage.stores.object_store import StoreSettings, StoreUrl
from storage.stores.open_store import open_store
from storage.stores.s3_store import S3Store
from tests.agent.running import running
from tests.spark_compaction.log import Log, one, records
from tests.spark_compaction.reading import compact_one, written_rows
from tests.support.minio import MinioEndpoint

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
_numbers = itertools.count(1)


@pytest.fixture
def store_settings(minio_endpoint: MinioEndpoint) -> StoreSettings:
    return StoreSettings(
        s3_access_key=minio_endpoint.access_key, s3_secret_key=SecretStr(minio_endpoint.secret_key)
    )


@pytest.fixture
def store_url(minio_endpoint: MinioEndpoint) -> str:
    return minio_endpoint.store_url("tables", f"log-{next(_numbers)}")


async def test_pyiceberg_and_spark_read_a_table_with_vended_keys(
    database_url: str, store_url: str, store_settings: StoreSettings, sequencer: Sequencer,
    minio_endpoint: MinioEndpoint,
) -> None:  # fmt: skip
    bucket = await S3Store.open(StoreUrl.parse(store_url), store_settings)
    await bucket.ensure_bucket()
    await bucket.close()
    store = await open_store(store_url, store_settings)
    log = Log(sequencer=sequencer, store=store)
    settings = CompactionSettings(
        **store_settings.model_dump(), database_url=database_url, store_url=store_url
    )
    await log.topic("orders")
    await log.write("orders", one(0, *records(50)))
    await compact_one(settings, "orders")
    async with running(
        database_url,
        store_url,
        store_settings=store_settings,
        iceberg_sts_role_arn="arn:aws:iam::000000000000:role/readers",
        iceberg_sts_endpoint=minio_endpoint.url,
    ) as agent:
        url = f"http://127.0.0.1:{agent.app.http_port}"

        def scanned() -> int:
            catalog = RestCatalog("tidelog", uri=f"{url}/iceberg")
            return len(catalog.load_table(("topics", "orders")).scan().to_arrow())

        without_keys = CompactionSettings(http_url=url, store_url=store_url)
        by_spark = await asyncio.to_thread(query, without_keys, "SELECT count(*) FROM topics.orders")

        assert await asyncio.to_thread(scanned) == len(written_rows(log, "orders"))
        assert by_spark.rows == ((50,),)
    await store.close()
