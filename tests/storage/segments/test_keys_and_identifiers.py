"""Segment ids and their keys."""

import pytest

from storage.identifiers import new_segment_id
from storage.segments.keys import (
    CheckpointObject,
    checked_key,
    checkpoint_manifest_key,
    checkpoint_object_of,
    checkpoint_part_key,
    checkpoint_prefix,
    is_merged,
    journal_entry_of,
    journal_key,
    journal_prefix,
    merged_key,
    segment_id_of,
    segment_key,
)
from storage.stores.object_store import StoreUrl
from tests.storage.builders import SEGMENT_ID


def test_a_segment_id_is_a_version_7_uuid_of_the_time_and_randomness_given() -> None:
    made = new_segment_id(now_ms=0x018BCFE56800, randomness=bytes.fromhex("0abc0def0123456789ab"))

    assert made == SEGMENT_ID
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"


def test_segment_ids_sort_by_their_millisecond() -> None:
    made = [new_segment_id(now_ms=ms) for ms in (1, 2, 1_700_000_000_000, 1_700_000_000_001)]

    assert sorted(made) == made


def test_keys_spread_by_the_last_random_byte_and_name_their_segment() -> None:
    key = segment_key("prod/eu", SEGMENT_ID)

    assert key == f"prod/eu/segments/ab/{SEGMENT_ID}"
    assert segment_id_of(key) == SEGMENT_ID
    assert not is_merged(key)


def test_a_merged_segments_key_has_a_prefix_of_its_own_and_names_it() -> None:
    key = merged_key("prod/segments", SEGMENT_ID)

    assert key == f"prod/segments/merged/ab/{SEGMENT_ID}"
    assert segment_id_of(key) == SEGMENT_ID
    assert is_merged(key)


def test_journal_keys_sort_by_epoch_and_number_and_name_them() -> None:
    places = [(1, 2), (1, 10), (2, 1), (10, 1)]
    keys = [journal_key("prod/eu", epoch, number) for epoch, number in places]

    assert keys[0] == "prod/eu/journal/0000000001/000000000002"
    assert keys == sorted(keys)
    assert [journal_entry_of(key) for key in keys] == places
    assert all(key.startswith(journal_prefix("prod/eu")) for key in keys)
    assert journal_entry_of(segment_key("prod/eu", SEGMENT_ID)) is None


def test_checkpoint_keys_name_the_checkpoint_and_the_part() -> None:
    part, manifest = checkpoint_part_key("prod", 3, 14, 1), checkpoint_manifest_key("prod", 3, 14)

    assert part == "prod/checkpoints/0000000003/000000000014/part-000001"
    assert manifest == "prod/checkpoints/0000000003/000000000014/manifest"
    assert checkpoint_object_of(part) == CheckpointObject(epoch=3, number=14, part=1)
    assert checkpoint_object_of(manifest) == CheckpointObject(epoch=3, number=14, part=0)
    assert part.startswith(checkpoint_prefix("prod", 3, 14))
    assert checkpoint_object_of(journal_key("prod", 3, 14)) is None


@pytest.mark.parametrize(
    "key",
    [
        "prod/segments/ab/no-uuid",
        f"prod/segments/00/{SEGMENT_ID}",
        f"prod/other/ab/{SEGMENT_ID}",
        "a",
        f"segments/ab/{SEGMENT_ID}",
    ],
)
def test_other_keys_name_no_segment(key: str) -> None:
    assert segment_id_of(checked_key(key)) is None


@pytest.mark.parametrize("text", ["", "/a", "a/", "a//b", "a/../b", ".", "a\\b", "a\nb"])
def test_keys_that_some_store_cannot_hold_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be an object's key"):
        checked_key(text)


def test_store_urls_are_understood() -> None:
    assert StoreUrl.parse("s3://bucket/a/b/?endpoint=http://127.0.0.1:9000") == StoreUrl(
        scheme="s3", bucket="bucket", prefix="a/b", endpoint="http://127.0.0.1:9000"
    )
    assert StoreUrl.parse("s3://bucket") == StoreUrl(scheme="s3", bucket="bucket")
    assert StoreUrl.parse("file:///var/lib/tidelog") == StoreUrl(scheme="file", path="/var/lib/tidelog")
    assert StoreUrl.parse("memory://tests") == StoreUrl(scheme="memory", bucket="tests")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("s3:///prefix", "names no bucket; write s3://bucket/prefix"),
        ("s3://key:secret@bucket", "TIDELOG_S3_ACCESS_KEY"),
        ("s3://bucket?endpiont=http://x", "unknown option endpiont"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "must be http://host:port"),
        ("s3://bucket?endpoint", "endpoint"),
        ("file://relative/path", "three slashes"),
        ("file:relative", "three slashes"),
        ("file:///a?x=1", "only s3:// URLs take options"),
        ("memory://", "write memory://name"),
        ("/var/lib", "file:///directory"),
        ("gs://bucket", "use s3://"),
    ],
)
def test_a_wrong_store_url_says_how_to_write_it(text: str, fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        StoreUrl.parse(text)
