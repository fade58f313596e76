"""A store whose certificate another CA than the system's has signed."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio.error import MinioException
from pydantic import SecretStr
from urllib3.exceptions import HTTPError

from storage.identifiers import ObjectKey
from storage.stores.minio_client import minio_client
from storage.stores.object_store import StoreSettings, StoreUnavailable, StoreUrl
from storage.stores.open_store import open_store
from tests.support.certificates import Authority
from tests.support.waiting import wait_until
from tidelog.devstack.ports import is_free, picked_ports
from tidelog.embedded.s3_endpoint import ACCESS_KEY, _command

SECRET_KEY = "a secret for this test"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def endpoint(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("s3")
    (folder / "buckets" / "secured").mkdir(parents=True)
    certificate = authority.issue()
    with picked_ports(1) as [port]:
        process = subprocess.Popen(
            [*_command(folder / "buckets", port, folder / "log"),
             "--cert", str(certificate.certificate), "--key", str(certificate.key)],
            env=os.environ | {"RCLONE_AUTH_KEY": f'"{ACCESS_KEY},{SECRET_KEY}"', "RCLONE_CONFIG": os.devnull},
        )  # fmt: skip
        try:
            wait_until(lambda: not is_free(port, "127.0.0.1"))
            yield f"https://localhost:{port}"
        finally:
            process.kill()
            process.wait()


def settings(ca_file: str | None) -> StoreSettings:
    return StoreSettings(
        s3_access_key=ACCESS_KEY, s3_secret_key=SecretStr(SECRET_KEY), s3_ca_file=ca_file, s3_attempts=2
    )


async def test_objects_are_written_and_read_over_tls(endpoint: str, authority: Authority) -> None:
    store = await open_store(f"s3://secured/log?endpoint={endpoint}", settings(authority.file))
    key = ObjectKey("tidelog/segments/aa/one")
    await store.put(key, [b"some ", b"bytes"])

    assert bytes(await store.get(key, 0, 10)) == b"some bytes"
    assert bytes(await store.get(key, 5, 10)) == b"bytes"
    await store.close()


async def test_an_endpoint_of_an_unknown_ca_gets_nothing(
    endpoint: str, authority: Authority, tmp_path: Path
) -> None:
    del authority
    for ca_file in (None, Authority.make(tmp_path).file):
        store = await open_store(f"s3://secured/log?endpoint={endpoint}", settings(ca_file))
        with pytest.raises(StoreUnavailable):
            await store.put(ObjectKey("tidelog/segments/aa/two"), [b"secret"])
        await store.close()


async def test_a_ca_file_that_is_missing_is_named(endpoint: str) -> None:
    with pytest.raises(StoreUnavailable, match="TIDELOG_S3_CA_FILE"):
        await open_store(f"s3://secured/log?endpoint={endpoint}", settings("/nowhere/ca.pem"))


async def test_the_executors_client_trusts_the_same_ca(endpoint: str, authority: Authority) -> None:
    url = StoreUrl.parse(f"s3://secured/log?endpoint={endpoint}")

    def buckets(ca_file: str | None) -> list[str]:
        client = minio_client(
            url, access_key=ACCESS_KEY, secret_key=SECRET_KEY, region="us-east-1", connections=1,
            connect_timeout_s=10, read_timeout_s=10, attempts=1, retry_base_s=0.1, ca_file=ca_file,
        )  # fmt: skip
        return [bucket.name for bucket in client.list_buckets()]

    assert await asyncio.to_thread(buckets, authority.file) == ["secured"]
    with pytest.raises((HTTPError, MinioException)):
        await asyncio.to_thread(buckets, None)


@pytest.mark.parametrize(
    ("url", "is_encrypted"),
    [
        ("s3://bucket", True),
        ("s3://bucket?endpoint=https://minio:9000", True),
        ("s3://bucket?endpoint=http://127.0.0.1:9000", True),
        ("s3://bucket?endpoint=http://minio:9000", False),
        ("file:///data", True),
    ],
)
def test_a_plain_endpoint_on_another_machine_is_not_encrypted(url: str, is_encrypted: bool) -> None:
    assert StoreUrl.parse(url).is_encrypted is is_encrypted
