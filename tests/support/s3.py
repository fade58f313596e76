"""A real S3 endpoint for the tests: one rclone per session; per test a fresh prefix of one bucket."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr

from storage.stores.object_store import ObjectStore, StoreSettings
from storage.stores.open_store import open_store
from tests.support.directories import new_directory
from tests.support.secret_watch import watch
from tidelog.embedded.s3_endpoint import S3Endpoint

BUCKET = "tidelog-tests"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[S3Endpoint]:
    """The session's endpoint; the bucket BUCKET exists."""
    with new_directory("s3") as directory:
        (directory / "buckets" / BUCKET).mkdir(parents=True)
        with S3Endpoint.start(directory) as endpoint:
            watch(endpoint.secret_key)
            yield endpoint


@pytest.fixture
def store_settings(s3_endpoint: S3Endpoint) -> StoreSettings:
    """The endpoint's keys."""
    return settings_of(s3_endpoint)


@pytest.fixture
def store_url(s3_endpoint: S3Endpoint) -> str:
    """A prefix for one test."""
    return s3_endpoint.store_url(BUCKET, f"test-{next(_numbers)}")


@pytest.fixture
async def store(store_url: str, store_settings: StoreSettings) -> AsyncIterator[ObjectStore]:
    """An open store at `store_url`."""
    opened = await open_store(store_url, store_settings)
    yield opened
    await opened.close()


def settings_of(endpoint: S3Endpoint) -> StoreSettings:
    return StoreSettings(s3_access_key=endpoint.access_key, s3_secret_key=SecretStr(endpoint.secret_key))
