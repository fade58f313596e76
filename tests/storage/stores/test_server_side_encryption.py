"""Uploads ask the store for server-side encryption, as the settings say."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr, ValidationError

from spark_compaction.bucket import BucketAddress
from storage.identifiers import ObjectKey
from storage.stores.object_store import StoreSettings
from storage.stores.open_store import open_store
from tidelog.backup.archive import Archive

_KMS = {
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": "a-key",
    "x-amz-server-side-encryption-bucket-key-enabled": "true",
}
_CASES = [
    ({}, {}),
    ({"s3_sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
    ({"s3_sse": "aws:kms", "s3_sse_kms_key_id": "a-key"}, _KMS),
]
_KEY = ObjectKey("tidelog/segments/aa/one")
_OK = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'


class Heard:
    """Keeps the headers of each request, and accepts it."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []

    def encryption(self) -> dict[str, str]:
        """Returns the headers of the last request that ask for encryption, all of which are signed."""
        headers = self.headers[-1]
        found = {name: value for name, value in headers.items() if "server-side" in name}
        assert all(name in headers["authorization"] for name in found)
        return found

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        self.headers.append({name.lower(): value for name, value in pairs})
        await reader.readexactly(int(self.headers[-1].get("content-length", 0)))
        writer.write(_OK)
        await writer.drain()
        writer.close()


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    heard = Heard()
    server = await asyncio.start_server(heard.accept, "127.0.0.1", 0)
    heard.url = f"s3://bucket/log?endpoint=http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield heard
    server.close()


def settings(asked: dict[str, str]) -> StoreSettings:
    return StoreSettings.model_validate(
        {"s3_access_key": "key", "s3_secret_key": SecretStr("secret"), "s3_attempts": 1, **asked}
    )


@pytest.mark.parametrize(("asked", "sent"), _CASES)
async def test_an_agents_uploads_carry_the_headers(
    heard: Heard, asked: dict[str, str], sent: dict[str, str]
) -> None:
    store = await open_store(heard.url, settings(asked))

    await store.put(_KEY, [b"some ", b"bytes"])
    assert heard.encryption() == sent
    await store.put_if(_KEY, [b"some bytes"], None)
    assert heard.encryption() == sent
    await store.close()


@pytest.mark.parametrize(("asked", "sent"), _CASES)
async def test_sparks_uploads_carry_the_headers(
    heard: Heard, asked: dict[str, str], sent: dict[str, str]
) -> None:
    bucket = BucketAddress.of(heard.url, settings(asked)).open()

    await asyncio.to_thread(bucket.put, _KEY, b"some bytes")

    assert heard.encryption() == sent


def test_uploads_of_backups_ask_for_it_and_downloads_do_not() -> None:
    archive = Archive.of("s3://bucket", "tidelog", settings(_CASES[2][0]))

    assert "--encryption aws:kms --sse-kms-key-id a-key" in archive.archive_command("archive", "1", "/", "/k")
    assert "--encryption" not in archive.restore_command("restore", "1", "/k")


def test_a_key_of_kms_needs_kms() -> None:
    with pytest.raises(ValidationError, match="TIDELOG_S3_SSE=aws:kms"):
        settings({"s3_sse": "AES256", "s3_sse_kms_key_id": "a-key"})
