"""Keys from the usual AWS chain: profiles, a `credential_process`, and a chain without keys."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from storage.credentials import ChainedKeys, NoKeys
from storage.stores.minio_client import ChainedKeysForMinio, minio_client
from storage.stores.object_store import StoreSettings, StoreUrl
from storage.stores.open_store import open_store
from tests.support.s3 import BUCKET
from tidelog.embedded.s3_endpoint import S3Endpoint

KEY = "tidelog/segments/00/x"
Chain = Callable[[str], None]


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Chain:
    """`chain(text)` makes this the file of profiles. Nothing else gives keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    profiles = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profiles))

    def write(text: str) -> None:
        profiles.write_text(text)

    return write


def a_process(folder: Path, endpoint: S3Endpoint, life: timedelta) -> str:
    """A program that gives out the endpoint's keys for a while, and counts its calls."""
    said = {"Version": 1, "AccessKeyId": endpoint.access_key, "SecretAccessKey": endpoint.secret_key}
    script = folder / "give_keys.py"
    script.write_text(
        "import datetime, json, sys\n"
        f"open({str(folder / 'asked')!r}, 'a').write('x')\n"
        f"until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds={life.total_seconds()})\n"
        f"json.dump({said!r} | {{'SessionToken': '', 'Expiration': until.isoformat()}}, sys.stdout)\n"
    )
    return f"{sys.executable} {script}"


def asked(folder: Path) -> int:
    return len((folder / "asked").read_text())


async def test_a_profile_whose_keys_come_from_a_process_serves_agents_and_executors(
    s3_endpoint: S3Endpoint, chain: Chain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chain(f"[profile log]\ncredential_process = {a_process(tmp_path, s3_endpoint, timedelta(hours=1))}\n")
    monkeypatch.setenv("AWS_PROFILE", "log")
    url = s3_endpoint.store_url(BUCKET, "process")
    store = await open_store(url, StoreSettings())
    client = minio_client(
        StoreUrl.parse(url), access_key=None, secret_key=None, region="us-east-1", connections=1,
        connect_timeout_s=5, read_timeout_s=5, attempts=1, retry_base_s=0.1,
    )  # fmt: skip

    await store.put(KEY, [b"x"])  # type: ignore[arg-type]
    read = client.get_object(bucket_name=BUCKET, object_name=f"process/{KEY}")

    assert read.read() == b"x"
    read.release_conn()
    assert asked(tmp_path) == 2
    await store.close()


async def test_keys_are_renewed_before_they_expire(
    s3_endpoint: S3Endpoint, chain: Chain, tmp_path: Path
) -> None:
    chain(f"[default]\ncredential_process = {a_process(tmp_path, s3_endpoint, timedelta(minutes=9))}\n")
    keys = ChainedKeys()

    first = await keys()
    assert first["expires_at"] is not None
    assert first["expires_at"] < datetime.now(UTC) + timedelta(minutes=9, seconds=1)
    await keys()

    assert asked(tmp_path) >= 2


async def test_keys_of_an_assumed_role_come_from_the_source_profile(chain: Chain) -> None:
    """As far as possible without a token service: the chain reads the profile, and fails at the service's
    address.
    """
    chain(
        "[default]\nrole_arn = arn:aws:iam::1:role/log\nsource_profile = base\nregion = us-east-1\n"
        "endpoint_url = http://127.0.0.1:9\n[profile base]\naws_access_key_id = a\naws_secret_access_key "
        "= b\n"
    )

    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        await ChainedKeys()()


async def test_a_chain_without_keys_says_what_to_set(chain: Chain) -> None:
    chain("")

    with pytest.raises(NoKeys, match="TIDELOG_S3_ACCESS_KEY"):
        await ChainedKeys()()
    with pytest.raises(NoKeys, match="AWS_PROFILE"):
        ChainedKeysForMinio().retrieve()


def test_the_chain_is_imported_only_when_it_is_needed() -> None:
    script = (
        "import sys, json, storage.stores.s3_store, storage.stores.minio_client; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    imported: list[Any] = json.loads(ran.stdout)
    assert not {"botocore", "aiobotocore"} & set(imported)
