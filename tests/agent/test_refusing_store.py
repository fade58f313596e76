"""A store that answers reads and refuses writes: where its message appears. MinIO with a user that may only
read, or MinIO away.
"""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import psycopg
import pytest
from kio.schema.errors import ErrorCode
from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider
from pydantic import SecretStr
from typer.testing import CliRunner

from storage.stores.object_store import StoreSettings
from tests.agent.running import Running, Wire, a_batch, a_metadata, a_produce, partitions_of, running
from tests.agent.test_app import readiness, until_not_ready, until_ready
from tests.support.minio import MinioEndpoint
from tests.support.waiting import until
from tidelog.cli import app
from tidelog.errors import UserError

_READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": ["arn:aws:s3:::*"]}],
}
_DENIED = "403 AccessDenied: Access Denied."
_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The bucket of a user whose rights can be changed."""

    url: str
    settings: StoreSettings
    user: str
    admin: MinioAdmin

    def allow(self, policy: str) -> None:
        self.admin.policy_set(policy, user=self.user)


@pytest.fixture
def bucket(minio_endpoint: MinioEndpoint) -> Iterator[Bucket]:
    """A new bucket, and a user that may read and write."""
    host = minio_endpoint.url.removeprefix("http://")
    name, user, secret = f"refusing-{next(_numbers)}", f"user-{secrets.token_hex(4)}", secrets.token_hex(16)
    root = Minio(
        endpoint=host,
        access_key=minio_endpoint.access_key,
        secret_key=minio_endpoint.secret_key,
        secure=False,
    )
    root.make_bucket(bucket_name=name)
    provider = StaticProvider(minio_endpoint.access_key, minio_endpoint.secret_key)
    admin = MinioAdmin(endpoint=host, credentials=provider, secure=False)
    admin.policy_add("read-only", policy=_READ_ONLY)
    admin.user_add(user, secret)
    found = Bucket(
        url=minio_endpoint.store_url(name),
        settings=StoreSettings(s3_access_key=user, s3_secret_key=SecretStr(secret)),
        user=user,
        admin=admin,
    )
    found.allow("readwrite")
    yield found
    admin.user_remove(user)


async def produce(wire: Wire) -> tuple[ErrorCode, str | None]:
    [answer] = partitions_of(await wire.ask(a_produce("refused", {0: a_batch(b"x")})))
    return answer.error_code, answer.error_message


async def test_a_refusal_by_the_store_is_in_ready_the_log_the_response_and_the_doctor(
    database_url: str, bucket: Bucket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"upload_backoff_s": 0.01, "store_trial_s": 0.2}
    async with running(database_url, bucket.url, store_settings=bucket.settings, **given) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("refused"))
        assert await produce(wire) == (ErrorCode.none, None)
        assert (await readiness(agent))[0] == 200

        await asyncio.to_thread(bucket.allow, "read-only")
        code, message = await produce(wire)

        assert code is ErrorCode.not_enough_replicas
        assert message is not None
        assert _DENIED in message
        await until_not_ready(agent, _DENIED)
        logged = [
            getattr(record, "error", "")
            for record in caplog.records
            if record.getMessage() == "upload failed"
        ]
        assert any(_DENIED in error for error in logged)
        said = await asyncio.to_thread(doctor, agent, database_url, bucket, monkeypatch)
        assert "is not ready: writes: uploads to the object store fail" in said
        assert _DENIED in said

        await asyncio.to_thread(bucket.allow, "readwrite")
        await until_ready(agent)  # although no client sends anything
        assert await produce(wire) == (ErrorCode.none, None)
        assert (await readiness(agent))[0] == 200


def doctor(agent: Running, database_url: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    assert bucket.settings.s3_access_key is not None
    assert bucket.settings.s3_secret_key is not None
    monkeypatch.setenv("TIDELOG_DATABASE_URL", database_url)
    monkeypatch.setenv("TIDELOG_STORE_URL", bucket.url)
    monkeypatch.setenv("TIDELOG_S3_ACCESS_KEY", bucket.settings.s3_access_key)
    monkeypatch.setenv("TIDELOG_S3_SECRET_KEY", bucket.settings.s3_secret_key.get_secret_value())
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "250"})
    assert result.exit_code == 1, (agent.bootstrap, result.output)
    return result.stdout


async def test_tidelog_produce_says_what_the_store_said(
    database_url: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"upload_backoff_s": 0.01}
    async with running(database_url, bucket.url, store_settings=bucket.settings, **given) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("refused"))
        await asyncio.to_thread(bucket.allow, "read-only")
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", agent.bootstrap)
        monkeypatch.setenv("TIDELOG_HTTP_URL", f"http://127.0.0.1:{agent.app.http_port}")
        monkeypatch.setenv("TIDELOG_CLIENT_TIMEOUT_S", "4")

        result = await asyncio.to_thread(CliRunner().invoke, app, ["produce", "refused"], input="x\n")

        assert isinstance(result.exception, UserError)
        assert _DENIED in str(result.exception)


async def test_a_request_whose_time_is_over_gets_the_stores_message(
    database_url: str, bucket: Bucket
) -> None:
    """Its upload is tried for longer than it waits."""
    given: dict[str, Any] = {"upload_backoff_s": 60.0}
    async with running(
        database_url, bucket.url, store_settings=bucket.settings, drain_timeout_s=0.1, **given
    ) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("refused"))
        await asyncio.to_thread(bucket.allow, "read-only")

        sent = await wire.send(a_produce("refused", {0: a_batch(b"x")}, timeout_s=5.0))
        await until(lambda: agent.metric("tidelog_put_failures_total") > 0)
        [answer] = partitions_of(await wire.receive(sent))

        assert answer.error_code is ErrorCode.request_timed_out
        assert _DENIED in answer.error_message


async def test_an_agent_whose_commits_fail_is_not_ready_even_if_the_database_answers(
    database_url: str, bucket: Bucket
) -> None:
    async with running(
        database_url, bucket.url, store_settings=bucket.settings, stalled_after_s=0.5
    ) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        await wire.ask(a_metadata("refused"))
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await connection.execute("SELECT 1 FROM partitions FOR UPDATE")
            sent = await wire.send(a_produce("refused", {0: a_batch(b"x")}))

            await until_not_ready(agent, "commits in the sequencer have had no answer")
            await connection.rollback()
        await wire.receive(sent)
        await until_ready(agent)
