"""KMS' protocol against moto's server: TIDELOG_TEST_MOTO names its program (`moto_server`)."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from uuid import uuid4

import pytest
from aiobotocore.session import get_session

from storage.encryption.key_wrapping import AwsKms, KeyUnavailable, key_wrapping
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import KeyId, TopicId
from tests.support.waiting import wait_until
from tidelog.devstack.ports import is_free, picked_ports

PROGRAM = os.environ.get("TIDELOG_TEST_MOTO")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="TIDELOG_TEST_MOTO names no moto_server")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with picked_ports(1) as [port]:
        process = subprocess.Popen(
            [str(PROGRAM), "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: not is_free(port, "127.0.0.1"))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture
async def kms(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> EncryptionSettings:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with get_session().create_client("kms", region_name="us-east-1", endpoint_url=endpoint) as client:
        key_id = (await client.create_key())["KeyMetadata"]["KeyId"]
    return EncryptionSettings(
        encryption_provider="aws-kms", encryption_key=key_id, encryption_kms_endpoint=endpoint
    )


async def test_kms_encrypts_a_key_for_one_topic_and_id(kms: EncryptionSettings) -> None:
    keys, topic, secret = key_wrapping(kms), TopicId(uuid4()), os.urandom(32)
    assert isinstance(keys, AwsKms)
    name, wrapped = await keys.wrap(secret, topic, KeyId(1))

    assert secret not in wrapped
    assert await keys.unwrap(name, wrapped, topic, KeyId(1)) == secret
    for place in ((topic, KeyId(2)), (TopicId(uuid4()), KeyId(1))):
        with pytest.raises(KeyUnavailable):
            await keys.unwrap(name, wrapped, *place)


async def test_a_kms_that_is_away_is_named_within_the_bound(kms: EncryptionSettings) -> None:
    away = kms.model_copy(
        update={"encryption_kms_endpoint": "http://127.0.0.1:9", "encryption_timeout_s": 2.0}
    )
    with pytest.raises(KeyUnavailable, match="KMS does not encrypt"):
        await AwsKms(away).wrap(bytes(32), TopicId(uuid4()), KeyId(1))


async def test_an_alias_that_is_moved_leaves_older_keys_readable_and_names_the_new_key(
    kms: EncryptionSettings,
) -> None:
    topic, secret = TopicId(uuid4()), os.urandom(32)
    async with get_session().create_client(
        "kms", region_name="us-east-1", endpoint_url=kms.encryption_kms_endpoint
    ) as client:
        await client.create_alias(AliasName="alias/moved", TargetKeyId=kms.encryption_key)
        keys = AwsKms(kms.model_copy(update={"encryption_key": "alias/moved"}))
        name, wrapped = await keys.wrap(secret, topic, KeyId(1))
        assert await keys.name() == name

        other = (await client.create_key())["KeyMetadata"]
        await client.update_alias(AliasName="alias/moved", TargetKeyId=other["KeyId"])

        assert await keys.unwrap(name, wrapped, topic, KeyId(1)) == secret
        assert await keys.name() == f"aws-kms:{other['Arn']}"


async def test_credentials_that_come_later_are_found_and_many_calls_run_at_once(
    kms: EncryptionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, topic, secret = AwsKms(kms), TopicId(uuid4()), os.urandom(32)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(KeyUnavailable, match="credentials"):
        await keys.wrap(secret, topic, KeyId(1))

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    wrapped = await asyncio.gather(*(keys.wrap(secret, topic, KeyId(number)) for number in range(1, 40)))
    opened = [keys.unwrap(*each, topic, KeyId(number)) for number, each in enumerate(wrapped, 1)]
    assert await asyncio.gather(*opened) == [secret] * 39
