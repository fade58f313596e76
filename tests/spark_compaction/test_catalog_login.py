"""Spark's engine of `tidelog sql` against an agent that asks for logins on its HTTP side."""

import asyncio
from typing import Any

import httpx
import psutil
import pytest
from pydantic import SecretStr

from agent.security.sasl.settings import SaslSettings
from spark_compaction.session import spark_session
from spark_compaction.settings import CompactionSettings
from spark_source.settings import SourceSettings
from storage.stores.object_store import StoreSettings
from tests.agent.running import running
from tests.agent.security.logins.users import add_user
from tests.spark_compaction.log import Log, one, records
from tests.spark_compaction.reading import compact_one
from tidelog.errors import UserError
from tidelog.sql.bucket_files import BucketFiles
from tidelog.sql.catalog import Catalog
from tidelog.sql.settings import SqlSettings
from tidelog.sql.spark_engine import SparkEngine, _iceberg_login
from tidelog.sql.statements import Statement

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
SECRET = "an-unlikely-secret-7ab1"
WRONG = "a-wrong-secret-93c0"
SASL = SaslSettings(sasl_mechanisms="PLAIN", http_authentication=True, sasl_failed_delay_ms=0)
PAST = "SELECT count(*) AS found FROM topics.orders.snapshots"


def asked(settings: SqlSettings) -> tuple[list[dict[str, Any]], str]:
    """Returns the rows, and Spark's configuration as Spark shows it."""
    files = BucketFiles(settings)
    try:
        engine = SparkEngine(settings, Catalog(settings, files), SourceSettings)
        engine.begin()
        answer = engine.run(Statement(text=PAST, is_ended=True), "", fresh=False, most_rows=10)
        rows = [row for batch in answer.batches for row in batch.to_pylist()]
        return rows, str(engine._start().sql("SET").collect())
    finally:
        files.close()


def arguments() -> str:
    """Of this process and all that it started, the JVM among them."""
    own = psutil.Process()
    return str([process.cmdline() for process in (own, *own.children(recursive=True))])


async def test_spark_logs_in_to_the_catalog_and_shows_no_secret(
    log: Log,
    settings: CompactionSettings,
    database_url: str,
    store_url: str,
    store_settings: StoreSettings,
) -> None:
    await log.topic("orders")
    await log.write("orders", one(0, *records(50)))
    await compact_one(settings, "orders")
    await add_user(database_url, "ann", SECRET)
    async with running(database_url, store_url, store_settings=store_settings, sasl_settings=SASL) as agent:
        url = f"http://127.0.0.1:{agent.app.http_port}"
        form = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": SECRET}
        async with httpx.AsyncClient(timeout=60) as client:
            token = (await client.post(f"{url}/iceberg/v1/oauth/tokens", data=form)).json()["access_token"]

        def given(**login: Any) -> SqlSettings:
            return SqlSettings(**store_settings.model_dump(), store_url=store_url, http_url=url, **login)

        for login in (
            {"http_user": "ann", "http_password": SecretStr(SECRET)},
            {"http_token": SecretStr(token)},
        ):
            rows, configuration = await asyncio.to_thread(asked, given(**login))

            assert rows == [{"found": 1}]
            assert "rest.auth.type" in configuration or "token-refresh-enabled" in configuration
            for secret in (SECRET, token, store_settings.s3_secret_key.get_secret_value()):  # type: ignore[union-attr]
                assert secret not in configuration
                assert secret not in arguments()

        wrong = given(http_user="ann", http_password=SecretStr(WRONG))
        with pytest.raises(UserError) as refused:
            await asyncio.to_thread(asked, wrong)
        assert WRONG not in str(refused.value)
        session = await asyncio.to_thread(spark_session, wrong, _iceberg_login(wrong))
        with pytest.raises(Exception) as said:  # noqa: PT011 - Spark's, whatever it is
            await asyncio.to_thread(lambda: session.sql(PAST).collect())
        assert "NotAuthorized" in str(said.value)
        assert WRONG not in str(said.value)
        nobody = await asyncio.to_thread(spark_session, wrong)
        with pytest.raises(Exception, match="NotAuthorized"):
            await asyncio.to_thread(lambda: nobody.sql(PAST).collect())
