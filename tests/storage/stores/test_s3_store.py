"""S3 that is slow, busy, away or misconfigured, and uploads that break off: a real endpoint behind an
unreliable link.
"""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import pytest
from pydantic import SecretStr

from storage.segments.keys import checked_key
from storage.stores.object_store import (
    ObjectNotFound,
    StoreBusy,
    StoreSettings,
    StoreUnavailable,
    StoreUrl,
)
from storage.stores.open_store import open_store
from storage.stores.s3_store import S3Store, SignedRanges
from tests.storage.stores.unreliable_link import INTERNAL_ERROR, SLOW_DOWN, UnreliableLink, an_answer
from tests.support.s3 import BUCKET
from tidelog.embedded.s3_endpoint import S3Endpoint

KEY = checked_key("cluster/segments/ab/one")
BREAK, STALL = b"", None


@pytest.mark.parametrize("fault", [SLOW_DOWN, INTERNAL_ERROR, BREAK, STALL])
async def test_a_fault_is_retried(linked_store: S3Store, link: UnreliableLink, fault: bytes | None) -> None:
    await linked_store.put(KEY, [b"data"])
    for call in (
        lambda: linked_store.put(KEY, [b"data"]),
        lambda: linked_store.get(KEY),
        lambda: linked_store.head(KEY),
        lambda: linked_store.delete([checked_key("other")]),
        linked_store.probe,
    ):
        link.faults = [fault]
        link.break_all()
        await call()
        assert link.faults == []

    assert await linked_store.get(KEY) == b"data"


@pytest.mark.parametrize("fault", [SLOW_DOWN, INTERNAL_ERROR, BREAK])
@pytest.mark.parametrize("listed_before", [0, 2, 4])
async def test_a_listing_goes_on_behind_a_page_that_failed(
    linked_store: S3Store,
    link: UnreliableLink,
    fault: bytes,
    listed_before: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.stores.s3_store._KEYS_PER_PAGE", 2)
    keys = [checked_key(f"listed/{number}") for number in range(5)]
    for key in keys:
        await linked_store.put(key, [b"x"])

    found = []
    if not listed_before:
        link.faults = [fault]
        link.break_all()
    async for info in linked_store.list("listed/"):
        found.append(info.key)
        if len(found) == listed_before:
            link.faults = [fault]
            link.break_all()

    assert found == keys
    assert link.faults == []


async def test_a_retried_put_releases_its_bytes_at_once(linked_store: S3Store, link: UnreliableLink) -> None:
    class Chunks(list[bytes]):
        """Lists do not allow weak references."""

    link.faults = [SLOW_DOWN]
    link.break_all()
    chunks = Chunks([b"data"])
    alive = weakref.ref(chunks)
    gc.disable()
    try:
        await linked_store.put(KEY, chunks)
        del chunks
        assert alive() is None, "only a search for cycles would free it, and nothing says when that comes"
    finally:
        gc.enable()


async def test_slow_down_to_the_end_is_busy_not_broken(linked_store: S3Store, link: UnreliableLink) -> None:
    link.faults = [SLOW_DOWN] * 10

    with pytest.raises(StoreBusy, match=r"asks to slow down \(503 SlowDown.*\), after 3 attempts"):
        await linked_store.put(KEY, [b"data"])

    assert link.connections == 3


async def test_a_put_that_finds_no_bucket_is_unavailable(linked_store: S3Store, link: UnreliableLink) -> None:
    """Also if a proxy says so in its own words: only a read may miss an object."""
    link.faults = [b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]

    with pytest.raises(StoreUnavailable, match="Create the bucket, or correct TIDELOG_STORE_URL"):
        await linked_store.put(KEY, [b"data"])


@pytest.mark.parametrize("fault", [BREAK, STALL])
async def test_a_lasting_fault_is_unavailable(
    linked_store: S3Store, link: UnreliableLink, fault: bytes | None
) -> None:
    link.faults = [fault] * 10

    with pytest.raises(StoreUnavailable, match="cannot reach the object store") as raised:
        await linked_store.get(KEY)

    assert not isinstance(raised.value, StoreBusy)
    assert "Checked TIDELOG_STORE_URL" in str(raised.value)
    assert link.connections == 3


FULL = an_answer(
    "507 Insufficient Storage", "XMinioStorageFull", "Storage backend has reached its minimum &lt;free&gt;."
)
OVER_QUOTA = an_answer("400 Bad Request", "XMinioAdminBucketQuotaExceeded", "Bucket quota exceeded")
DENIED = an_answer("403 Forbidden", "AccessDenied", "Access Denied.")


@pytest.mark.parametrize(
    ("answer", "said", "attempts"),
    [
        (
            FULL,
            "answers with an error (507 XMinioStorageFull: Storage backend has reached its minimum <free>.)",
            3,
        ),
        (
            OVER_QUOTA,
            "refused (400 XMinioAdminBucketQuotaExceeded: Bucket quota exceeded). Raise the bucket's quota",
            1,
        ),
        (DENIED, "refused (403 AccessDenied: Access Denied.). May these keys use this bucket?", 1),
        (INTERNAL_ERROR, "answers with an error (500)", 3),
    ],
)
async def test_the_stores_own_message_is_in_the_error(
    linked_store: S3Store, link: UnreliableLink, answer: bytes, said: str, attempts: int
) -> None:
    link.faults = [answer] * 10

    with pytest.raises(StoreUnavailable) as raised:
        await linked_store.put(KEY, [b"data"])

    assert said in str(raised.value)
    assert "cannot reach" not in str(raised.value)
    assert link.connections == attempts


async def test_a_call_is_bounded_whatever_its_attempts_would_take(
    link: UnreliableLink, store_settings: StoreSettings
) -> None:
    settings = store_settings.model_copy(
        update={
            "s3_attempts": 1000,
            "s3_attempt_timeout_s": 0.2,
            "s3_call_timeout_s": 1.0,
            "s3_retry_base_s": 0.01,
        }
    )
    store = await S3Store.open(StoreUrl.parse(f"s3://{BUCKET}?endpoint={link.url}"), settings)
    link.faults = [STALL] * 1000
    began = time.monotonic()

    with pytest.raises(StoreUnavailable):
        await store.get(KEY)

    assert time.monotonic() - began >= 1.0
    assert link.connections < 20
    await store.close()


async def test_an_address_without_a_listener_names_the_fix() -> None:
    settings = StoreSettings(
        s3_access_key="a",
        s3_secret_key=SecretStr("b"),
        s3_attempts=2,
        s3_retry_base_s=0.01,
        s3_call_timeout_s=5,
    )
    store = await open_store("s3://bucket?endpoint=http://127.0.0.1:1", settings)

    with pytest.raises(StoreUnavailable, match=r"at http://127\.0\.0\.1:1 .*Is it running\?"):
        await store.probe()
    await store.close()


async def test_a_missing_bucket_names_the_fix(s3_endpoint: S3Endpoint, store_settings: StoreSettings) -> None:
    store = await open_store(s3_endpoint.store_url("no-such-bucket"), store_settings)

    for call in (store.probe(), store.put(KEY, [b"x"]), store.get(KEY), store.delete([KEY])):
        with pytest.raises(StoreUnavailable, match="Create the bucket, or correct TIDELOG_STORE_URL"):
            await call
    with pytest.raises(StoreUnavailable, match="Create the bucket"):
        _ = [info async for info in store.list("")]
    await store.close()


async def test_ensure_bucket_makes_it_once(s3_endpoint: S3Endpoint, store_settings: StoreSettings) -> None:
    store = await S3Store.open(StoreUrl.parse(s3_endpoint.store_url("made-by-test")), store_settings)

    await store.ensure_bucket()
    await store.put(KEY, [b"x"])
    await store.ensure_bucket()

    assert await store.get(KEY) == b"x"
    await store.close()


async def test_wrong_keys_are_not_retried_and_name_the_fix(
    link: UnreliableLink, store_settings: StoreSettings
) -> None:
    url = f"s3://{BUCKET}?endpoint={link.url}"
    wrong_secret = store_settings.model_copy(update={"s3_secret_key": SecretStr("wrong")})
    wrong_key = store_settings.model_copy(update={"s3_access_key": "wrong"})
    for settings in (wrong_secret, wrong_key):
        store = await open_store(url, settings)
        with pytest.raises(StoreUnavailable, match=r"refused .*(TIDELOG_S3_|keys)"):
            await store.put(KEY, [b"x"])
        await store.close()

    assert link.connections == 2


async def test_half_a_pair_of_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="set both TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY"):
        await open_store("s3://bucket", StoreSettings(s3_access_key="a", s3_secret_key=None))


async def test_a_cancelled_put_ends_its_request(link: UnreliableLink, linked_store: S3Store) -> None:
    link.faults = [STALL]
    putting = asyncio.create_task(linked_store.put(KEY, [bytes(1 << 20)] * 16))
    await link.stalled.wait()

    putting.cancel()
    await asyncio.gather(putting, return_exceptions=True)

    async with asyncio.timeout(60):
        await link.hung_up.wait()


@pytest.mark.parametrize("cut", [1, 3, 61, 4096])
async def test_views_are_uploaded_without_a_copy(linked_store: S3Store, cut: int) -> None:
    data = bytes(range(256)) * 40
    views = [memoryview(data)[start : start + cut] for start in range(0, len(data), cut)]

    await linked_store.put(KEY, views)

    assert await linked_store.get(KEY) == data


async def test_keys_of_a_profile_are_used_if_no_others_are_set(
    s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "credentials"
    profiles.write_text(
        f"[log]\naws_access_key_id = {s3_endpoint.access_key}\naws_secret_access_key = "
        f"{s3_endpoint.secret_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    monkeypatch.setenv("AWS_PROFILE", "log")
    store = await open_store(s3_endpoint.store_url(BUCKET, "profile"), StoreSettings())

    await store.put(KEY, [b"x"])

    assert await store.get(KEY) == b"x"
    await store.close()


async def test_prefixes_keep_stores_of_one_bucket_apart(
    s3_endpoint: S3Endpoint, store_settings: StoreSettings
) -> None:
    one = await open_store(s3_endpoint.store_url(BUCKET, "apart/one"), store_settings)
    two = await open_store(s3_endpoint.store_url(BUCKET, "apart/one-more"), store_settings)
    await one.put(KEY, [b"1"])
    await two.put(KEY, [b"2"])

    assert (await one.get(KEY), await two.get(KEY)) == (b"1", b"2")
    assert [info.key async for info in one.list("")] == [KEY]
    await one.delete([KEY])
    assert await two.get(KEY) == b"2"
    await one.close()
    await two.close()


async def test_a_whole_object_needs_no_signed_range(
    s3_store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint of development stacks serves ranges in a way that only a slow client accepts."""
    await s3_store.put(KEY, [b"0123456789"])
    assert await s3_store.get(KEY, 2, 4) == b"23"
    assert await s3_store.get(KEY, 0, 4) == b"0123"
    monkeypatch.setattr(SignedRanges, "get", None)

    assert await s3_store.get(KEY, 0, 10) == b"0123456789"


async def test_more_calls_than_connections_wait_for_one(
    s3_endpoint: S3Endpoint, store_settings: StoreSettings
) -> None:
    settings = store_settings.model_copy(update={"s3_connections": 2})
    store = await open_store(s3_endpoint.store_url(BUCKET, "pool"), settings)
    await store.put(KEY, [b"x" * 100_000])

    found = await asyncio.gather(*(store.get(KEY) for _ in range(30)))

    assert {len(data) for data in found} == {100_000}
    await store.close()


class HalfSentPut:
    """A signed PUT whose body stops halfway, by a plain socket, as a killed or stalled agent leaves it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes) -> None:
        self._reader, self._writer, self._rest = reader, writer, rest

    @classmethod
    async def begin(cls, store: S3Store, key: str, body: bytes) -> "HalfSentPut":
        signed = urlsplit(
            await obstore.sign_async(store._client, "PUT", checked_key(key), timedelta(minutes=1))
        )
        reader, writer = await asyncio.open_connection(signed.hostname, signed.port)
        writer.write(f"PUT {signed.path}?{signed.query} HTTP/1.1\r\nHost: {signed.netloc}\r\n".encode())
        writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await writer.drain()
        await asyncio.sleep(0.2)
        return cls(reader, writer, body[len(body) // 2 :])

    async def finish(self) -> bytes:
        self._writer.write(self._rest)
        status = await asyncio.wait_for(self._reader.readline(), 60)
        self._writer.close()
        return status

    async def break_off(self) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0.3)


@pytest.fixture(params=["s3_endpoint", "minio_endpoint"])
async def s3_store(request: pytest.FixtureRequest) -> AsyncIterator[S3Store]:
    endpoint = request.getfixturevalue(request.param)
    settings = StoreSettings(s3_access_key=endpoint.access_key, s3_secret_key=SecretStr(endpoint.secret_key))
    url = endpoint.store_url(BUCKET, f"half-sent/{time.time_ns()}")
    store = await S3Store.open(StoreUrl.parse(url), settings)
    await store.ensure_bucket()
    yield store
    await store.close()


BODY = bytes(range(256)) * 8192


async def test_a_half_sent_put_is_never_seen(s3_store: S3Store) -> None:
    half = await HalfSentPut.begin(s3_store, KEY, BODY)

    for _ in range(2):  # while it is open, and after it broke off
        with pytest.raises(ObjectNotFound):
            await s3_store.get(KEY)
        assert [info.key async for info in s3_store.list("")] == []
        await half.break_off()


async def test_a_put_seen_to_its_end_is_there(s3_store: S3Store) -> None:
    half = await HalfSentPut.begin(s3_store, KEY, BODY)

    assert b" 200 " in await half.finish()
    assert await s3_store.get(KEY) == BODY


async def test_a_half_sent_put_leaves_the_object_of_an_overtaking_attempt_alone(s3_store: S3Store) -> None:
    stalled = await HalfSentPut.begin(s3_store, KEY, BODY)
    await s3_store.put(KEY, [BODY])

    assert await s3_store.get(KEY) == BODY
    await stalled.break_off()

    assert await s3_store.get(KEY) == BODY
    assert (await s3_store.head(KEY)).size_bytes == len(BODY)


async def test_a_late_attempt_writes_the_same_bytes_again(s3_store: S3Store) -> None:
    late = await HalfSentPut.begin(s3_store, KEY, BODY)
    await s3_store.put(KEY, [BODY])

    await late.finish()

    assert await s3_store.get(KEY) == BODY


async def test_a_late_attempt_after_a_delete_brings_the_object_back(s3_store: S3Store) -> None:
    """This is why the garbage collector keeps tombstones and deletes twice
    (docs/design/garbage.md#when-an-object-may-be-deleted).
    """
    late = await HalfSentPut.begin(s3_store, KEY, BODY)
    await s3_store.delete([KEY])

    await late.finish()

    assert (await s3_store.head(KEY)).size_bytes == len(BODY)


async def test_an_answer_cut_short_is_not_taken_for_the_object(
    linked_store: S3Store, link: UnreliableLink
) -> None:
    await linked_store.put(KEY, [b"0123456789"])
    link.faults = [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234"]
    link.break_all()

    assert await linked_store.get(KEY) == b"0123456789"
