"""The synchronous bucket: one contract, in a directory and on a real S3 endpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from spark_compaction.bucket import Bucket, BucketAddress
from storage.identifiers import ObjectKey
from storage.segments.keys import inline_key
from storage.stores.object_store import ObjectNotFound, StoreSettings, StoreUnavailable

KEY = ObjectKey("tidelog/history/a b/file.parquet")


@pytest.fixture(params=["file", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BucketAddress]:
    if request.param == "file":
        yield BucketAddress.of(f"file://{tmp_path}", StoreSettings())
    else:
        yield BucketAddress.of(
            request.getfixturevalue("store_url"), request.getfixturevalue("store_settings")
        )


@pytest.fixture
def bucket(address: BucketAddress) -> Bucket:
    return address.open()


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_what_was_put_is_read_back_whole_and_in_ranges(bucket: Bucket, size: int) -> None:
    data = bytes(n % 251 for n in range(size))

    bucket.put(KEY, memoryview(data))

    assert bucket.size(KEY) == size
    assert bucket.get(KEY) == data
    assert bucket.get(KEY, 10, 20) == data[10:20]
    assert bucket.get(KEY, 0, size) == data
    assert bucket.get(KEY, 5, 5) == b""


def test_an_object_whose_key_holds_its_bytes_is_read_without_the_store(bucket: Bucket) -> None:
    key = inline_key(b"marker")

    assert bucket.get(key) == b"marker"
    assert bucket.get(key, 1, 3) == b"ar"


def test_a_missing_object_is_told_from_a_store_that_is_away(bucket: Bucket) -> None:
    for call in (bucket.get, bucket.size, lambda key: bucket.get(key, 0, 10)):
        with pytest.raises(ObjectNotFound):
            call(ObjectKey("none"))


def test_a_missing_bucket_is_not_a_missing_object(store_url: str, store_settings: StoreSettings) -> None:
    elsewhere = store_url.replace("s3://tidelog-tests", "s3://no-such-bucket")

    with pytest.raises(StoreUnavailable, match="no-such-bucket"):
        BucketAddress.of(elsewhere, store_settings).open().get(KEY)


def test_an_endpoint_that_is_away_is_an_error_within_its_attempts() -> None:
    settings = StoreSettings(
        s3_access_key="a",
        s3_secret_key=SecretStr("b"),
        s3_attempts=2,
        s3_retry_base_s=0.01,
        s3_connect_timeout_s=1,
    )

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1.*TIDELOG_STORE_URL"):
        BucketAddress.of("s3://bucket/p?endpoint=http://127.0.0.1:1", settings).open().get(KEY)


def test_locations_are_absolute_and_lead_back_to_keys(address: BucketAddress) -> None:
    location = address.location(KEY)

    assert location.startswith(("s3://", "file:///"))
    assert address.key_of(location) == KEY
    with pytest.raises(ValueError, match="lies outside"):
        address.key_of("s3://elsewhere/key")


def test_executors_cannot_share_a_memory_store() -> None:
    with pytest.raises(ValueError, match="use s3:// or file://"):
        BucketAddress.of("memory://here", StoreSettings())
