"""Keys that the Iceberg catalog gives to readers of a table: a real agent, and MinIO as store and STS."""

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from minio import Minio
from minio.error import S3Error
from pydantic import SecretStr

from agent.http.vended_keys import VendedKeys
from agent.security.audit.audit import trail
from sequencer.client import Sequencer
from sequencer.history.history_values import HistoryTable
from storage.identifiers import ObjectKey
from storage.scoped_keys import NoScopedKeys, ScopedKeys, TokenService, read_policy
from storage.stores.object_store import ObjectStore, StoreSettings, StoreUrl
from storage.stores.s3_store import S3Store
from tests.agent.http.test_iceberg import published
from tests.agent.running import running, until_answered
from tests.storage.stores.unreliable_link import UnreliableLink
from tests.support.minio import MinioEndpoint
from tidelog.process.logs import configure_logs

ROLE = "arn:aws:iam::000000000000:role/readers"
ASKS = {"X-Iceberg-Access-Delegation": "vended-credentials,remote-signing"}
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    url: str
    settings: StoreSettings
    endpoint: MinioEndpoint
    store: ObjectStore

    @property
    def parsed(self) -> StoreUrl:
        return StoreUrl.parse(self.url)

    def service(self, endpoint: str, timeout_s: float = 30, duration_s: int = 900) -> TokenService:
        return TokenService(
            self.parsed, self.settings, role_arn=ROLE, endpoint=endpoint, duration_s=duration_s,
            timeout_s=timeout_s,
        )  # fmt: skip

    def vended(self, endpoint: str, timeout_s: float = 30, most_tables: int = 10) -> "Vended":
        return Vended(self, endpoint, timeout_s, most_tables)


class Vended(VendedKeys):
    """With a clock that the test moves."""

    def __init__(self, bucket: Bucket, endpoint: str, timeout_s: float, most_tables: int) -> None:
        self.later = timedelta(0)
        super().__init__(
            bucket.service(endpoint, timeout_s),
            bucket.parsed,
            duration_s=900,
            timeout_s=timeout_s,
            most_tables=most_tables,
            utc_now=lambda: datetime.now(UTC) + self.later,
        )


@pytest.fixture
async def bucket(minio_endpoint: MinioEndpoint) -> AsyncIterator[Bucket]:
    settings = StoreSettings(
        s3_access_key=minio_endpoint.access_key, s3_secret_key=SecretStr(minio_endpoint.secret_key)
    )
    url = minio_endpoint.store_url("vended", f"log-{next(_numbers)}/{secrets.token_hex(4)}")
    store = await S3Store.open(StoreUrl.parse(url), settings)
    await store.ensure_bucket()
    yield Bucket(url=url, settings=settings, endpoint=minio_endpoint, store=store)
    await store.close()


@asynccontextmanager
async def catalog(database_url: str, bucket: Bucket, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    given = {"iceberg_sts_role_arn": ROLE, "iceberg_sts_endpoint": bucket.endpoint.url, **settings}
    async with (
        running(database_url, bucket.url, store_settings=bucket.settings, **given) as agent,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}", timeout=60) as client,
    ):
        await until_answered(lambda: _is_ready(client))
        yield client


async def _is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


def path_of(table: str) -> str:
    return f"/iceberg/v1/namespaces/topics/tables/{table}"


def reader(bucket: Bucket, config: dict[str, str]) -> Minio:
    return Minio(
        endpoint=bucket.endpoint.url.removeprefix("http://"),
        access_key=config["s3.access-key-id"],
        secret_key=config["s3.secret-access-key"],
        session_token=config["s3.session-token"],
        region=config["s3.region"],
        secure=False,
    )


def read(client: Minio, bucket: Bucket, key: str) -> bytes:
    answer = client.get_object(bucket_name="vended", object_name=f"{bucket.parsed.prefix}/{key}")
    try:
        return answer.read()
    finally:
        answer.release_conn()


async def refusal(call: Any, **arguments: Any) -> str:
    with pytest.raises(S3Error) as refused:
        await asyncio.to_thread(call, **arguments)
    return str(refused.value.code)


async def test_vended_keys_read_the_table_and_nothing_else(
    database_url: str, sequencer: Sequencer, bucket: Bucket
) -> None:
    async with catalog(database_url, bucket) as client:
        await published(sequencer, bucket.store, "orders")
        await published(sequencer, bucket.store, "payments")
        mine, other = await sequencer.history.table("orders"), await sequencer.history.table("payments")
        assert mine is not None
        assert other is not None
        assert mine.metadata_key is not None
        assert other.metadata_key is not None
        segment = ObjectKey("tidelog/segments/00/secret")
        beside = ObjectKey(f"c/history/{mine.topic_id}-beside")
        for key in (segment, beside):
            await bucket.store.put(key, [b"secret"])
        loaded = (await client.get(path_of("orders"), headers=ASKS)).json()
        [given] = loaded["storage-credentials"]
        s3 = reader(bucket, given["config"])

        metadata = await asyncio.to_thread(read, s3, bucket, mine.metadata_key)

        assert json.loads(metadata) == loaded["metadata"]
        for key in (other.metadata_key, segment, beside, ObjectKey("tidelog/ownership")):
            assert await refusal(read, client=s3, bucket=bucket, key=key) == "AccessDenied"
        name = f"{bucket.parsed.prefix}/{mine.metadata_key}"
        assert await refusal(s3.remove_object, bucket_name="vended", object_name=name) == "AccessDenied"
        listing = await refusal(lambda: list(s3.list_objects(bucket_name="vended", prefix=name)))
        assert listing == "AccessDenied"
        source = s3.fput_object
        assert await refusal(source, bucket_name="vended", object_name=f"{name}2", file_path=__file__) == (
            "AccessDenied"
        )
        assert await asyncio.to_thread(read, s3, bucket, mine.metadata_key) == metadata


async def test_the_answer_names_the_prefix_the_expiry_and_where_newer_keys_are(
    database_url: str, sequencer: Sequencer, bucket: Bucket
) -> None:
    async with catalog(database_url, bucket, iceberg_sts_duration_s=1800) as client:
        topic = await published(sequencer, bucket.store, "orders")
        began_s = time.time()
        answer = await client.get(path_of("orders"), headers=ASKS)
        loaded = answer.json()
        [given] = loaded["storage-credentials"]
        config = given["config"]

        again = await client.get(f"/iceberg/{config['client.refresh-credentials-endpoint']}")
        unasked = await client.get(path_of("orders"))
        unchanged = await client.get(
            path_of("orders"), headers={**ASKS, "If-None-Match": answer.headers["ETag"]}
        )
        without_keys = await client.get(
            path_of("orders"), headers={**ASKS, "If-None-Match": unasked.headers["ETag"]}
        )

        assert given["prefix"] == f"{bucket.url.split('?')[0]}/c/history/{topic['metadata']['table-uuid']}/"
        assert abs(int(config["s3.session-token-expires-at-ms"]) / 1000 - began_s - 1800) < 120
        assert config["s3.endpoint"] == bucket.endpoint.url
        assert loaded["config"] == config
        assert again.json()["storage-credentials"] == [given]
        assert answer.headers["Cache-Control"] == again.headers["Cache-Control"] == "no-store"
        assert unasked.json()["config"] == {}
        assert "storage-credentials" not in unasked.json()
        assert (unchanged.status_code, without_keys.status_code) == (304, 200)
        assert (await client.get(f"{path_of('missing')}/credentials")).status_code == 404


async def test_without_a_role_the_catalog_gives_no_keys(
    database_url: str, sequencer: Sequencer, bucket: Bucket
) -> None:
    await published(sequencer, bucket.store, "orders")
    async with catalog(database_url, bucket, iceberg_sts_role_arn=None, iceberg_sts_endpoint=None) as client:
        answers = [
            await client.get(path_of("orders"), headers=ASKS),
            await client.get(f"{path_of('orders')}/credentials", headers=ASKS),
            await client.get("/iceberg/v1/config", headers=ASKS),
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json()["config"] == {}
    assert answers[1].json() == {"storage-credentials": []}
    for answer in answers:
        assert bucket.endpoint.secret_key not in answer.text
        assert "access-key" not in answer.text


async def test_while_sts_is_away_only_readers_without_own_keys_are_refused(
    database_url: str, sequencer: Sequencer, bucket: Bucket
) -> None:
    async with UnreliableLink.to(bucket.endpoint.url) as link:
        link.faults = [None] * 100
        sts = {"iceberg_sts_endpoint": link.url, "iceberg_sts_timeout_s": 0.5}
        async with catalog(database_url, bucket, **sts) as client:
            await published(sequencer, bucket.store, "orders")

            refused, *others = await asyncio.gather(
                client.get(path_of("orders"), headers=ASKS),
                client.get(path_of("orders")),
                client.get("/iceberg/v1/namespaces/topics/tables"),
            )
            again = await client.get(f"{path_of('orders')}/credentials")

            assert [answer.status_code for answer in others] == [200, 200]
            for answer in (refused, again):
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
                assert answer.json()["error"]["type"] == "ServiceUnavailableException"
                assert "no answer within 0.5 s" in answer.json()["error"]["message"]

            link.faults.clear()

            async def is_given() -> bool:
                return (await client.get(path_of("orders"), headers=ASKS)).status_code == 200

            await until_answered(is_given)


async def table_named(name: str, sequencer: Sequencer, bucket: Bucket) -> HistoryTable:
    await published(sequencer, bucket.store, name)
    table = await sequencer.history.table(name)
    assert table is not None
    return table


async def test_readers_share_a_tables_keys_until_a_third_of_their_life_is_left(
    sequencer: Sequencer, bucket: Bucket
) -> None:
    table = await table_named("orders", sequencer, bucket)
    vended = bucket.vended(bucket.endpoint.url)

    first, *others = await asyncio.gather(*(vended.of(table) for _ in range(20)))
    assert set(others) == {first}
    vended.later = timedelta(seconds=590)
    assert await vended.of(table) == first
    vended.later = timedelta(seconds=610)
    assert (await vended.of(table)).access_key != first.access_key


async def test_older_keys_are_given_while_sts_is_away_until_they_end(
    sequencer: Sequencer, bucket: Bucket
) -> None:
    table = await table_named("orders", sequencer, bucket)
    async with UnreliableLink.to(bucket.endpoint.url) as link:
        vended = bucket.vended(link.url)
        first = await vended.of(table)
    vended.later = timedelta(seconds=700)

    assert await vended.of(table) == first
    vended.later = timedelta(seconds=850)
    with pytest.raises(NoScopedKeys):
        await vended.of(table)


async def test_a_reader_that_goes_away_leaves_the_others_their_answer(
    sequencer: Sequencer, bucket: Bucket
) -> None:
    table = await table_named("orders", sequencer, bucket)
    vended = bucket.vended(bucket.endpoint.url)
    first = asyncio.create_task(vended.of(table))
    other = asyncio.create_task(vended.of(table))
    await asyncio.sleep(0)
    first.cancel()

    assert isinstance(await other, ScopedKeys)


async def test_the_keys_of_the_tables_read_last_are_kept(sequencer: Sequencer, bucket: Bucket) -> None:
    tables = [await table_named(f"topic-{number}", sequencer, bucket) for number in range(4)]
    vended = bucket.vended(bucket.endpoint.url, most_tables=2)

    first = [await vended.of(table) for table in tables]

    assert await vended.of(tables[3]) == first[3]
    assert await vended.of(tables[0]) != first[0]
    assert len(vended._kept) == 2


async def test_a_refusal_of_sts_is_asked_for_once_and_names_no_key(
    sequencer: Sequencer, bucket: Bucket
) -> None:
    table = await table_named("orders", sequencer, bucket)
    wrong = bucket.settings.model_copy(update={"s3_secret_key": SecretStr("wrong")})
    vended = Bucket(url=bucket.url, settings=wrong, endpoint=bucket.endpoint, store=bucket.store).vended(
        bucket.endpoint.url
    )

    for _ in range(3):
        with pytest.raises(NoScopedKeys, match="it refuses: AccessDenied") as refused:
            await vended.of(table)
        assert bucket.settings.s3_access_key not in str(refused.value).split()


async def test_logs_of_every_level_hold_neither_keys_nor_policy(
    sequencer: Sequencer, bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    # configure_logs changes those of the audit trail, too.
    monkeypatch.setattr(trail, "handlers", list(trail.handlers))
    monkeypatch.setattr(trail, "level", trail.level)
    monkeypatch.setattr(trail, "propagate", trail.propagate)
    table = await table_named("orders", sequencer, bucket)
    capsys.readouterr()
    configure_logs("json", "debug")

    keys = await bucket.vended(bucket.endpoint.url).of(table)

    logging.getLogger("tidelog").warning("given", extra={"keys": keys})
    logged = capsys.readouterr().err
    assert "given" in logged
    for secret in (keys.access_key, keys.secret_key, keys.session_token, "s3:GetObject", "AWS4-HMAC"):
        assert secret not in logged


def test_a_policy_on_aws_decrypts_this_table_alone() -> None:
    policy = json.loads(read_policy(StoreUrl.parse("s3://logs/a"), "a/c/history/id/", partition="aws-cn"))

    read, decrypt = policy["Statement"]
    assert read["Action"] == ["s3:GetObject"]
    assert read["Resource"] == ["arn:aws-cn:s3:::logs/a/c/history/id/*"]
    assert decrypt["Action"] == ["kms:Decrypt"]
    assert decrypt["Condition"]["StringLike"]["kms:EncryptionContext:aws:s3:arn"] == [
        "arn:aws-cn:s3:::logs",
        "arn:aws-cn:s3:::logs/a/c/history/id/*",
    ]
