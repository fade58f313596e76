"""Keys of objects in the bucket.

Segments spread over 256 prefixes by the last random byte of their id, because stores limit the requests per
prefix (docs/design/segment.md#keys). Merged segments have their own prefix, so a key tells a reader that it
reads history.

Promise: a segment's key contains its id, so a listing of the bucket is enough to match it with the sequencer.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from uuid import UUID

from storage.identifiers import KeyId, ObjectKey, SegmentId, TopicId

_INLINE = "inline/"
_UPLOADED = "segments"
_MERGED = "merged"
_TOPIC_KEY = re.compile(r"/topic-keys/([0-9a-f-]{36})/([0-9a-f]{16})$")
_OF_RECORDS = re.compile(r"(.+)/(?:segments/[0-9a-f]{2}|merged/[0-9a-f]{2}|history/[0-9a-f-]{36})/")
_ENTRY = re.compile(r"/journal/(\d{10})/(\d{12})$")
_CHECKPOINT = re.compile(r"/checkpoints/(\d{10})/(\d{12})/(?:manifest|part-(\d{6}))$")


def segments_prefix(cluster: str) -> str:
    """The prefix of all segments that a cluster's agents upload."""
    return f"{cluster}/{_UPLOADED}/"


def inline_key(data: bytes) -> ObjectKey:
    """The key of an object that is not in the bucket: the key itself holds its bytes
    (docs/design/transactions.md#ending)."""
    return ObjectKey(_INLINE + urlsafe_b64encode(data).decode())


def is_inline(key: ObjectKey) -> bool:
    return key.startswith(_INLINE)


def inline_bytes(key: ObjectKey) -> bytes | None:
    """Returns the bytes that the key holds; None: it names an object of the bucket."""
    return urlsafe_b64decode(key[len(_INLINE) :]) if is_inline(key) else None


def merged_prefix(cluster: str) -> str:
    """The prefix of all merged segments of a cluster (docs/design/merging.md#copying)."""
    return f"{cluster}/{_MERGED}/"


def backups_prefix(cluster: str) -> str:
    """The prefix of Postgres' backups. `tidelog backup prune` deletes there, Tidelog's housekeeping never
    does."""
    return f"{cluster}/postgres-backups/"


def identity_prefix(cluster: str) -> str:
    """The prefix of the object that says to which database the rest belongs
    (`sequencer/cluster/store_identity.py`)."""
    return f"{cluster}/store-identity/"


def identity_key(cluster: str, store_id: str) -> ObjectKey:
    return checked_key(f"{identity_prefix(cluster)}{store_id}")


def journal_prefix(cluster: str) -> str:
    """The prefix of the commit journal's entries (`docs/journal-format.md`)."""
    return f"{cluster}/journal/"


def journal_key(cluster: str, epoch: int, number: int) -> ObjectKey:
    """The key of an entry. Keys sort as (epoch, number)."""
    return checked_key(f"{journal_prefix(cluster)}{epoch:010d}/{number:012d}")


def journal_entry_of(key: ObjectKey) -> tuple[int, int] | None:
    """Returns (epoch, number) of the entry that a key names; None if it names none."""
    found = _ENTRY.search(key)
    return (int(found[1]), int(found[2])) if found else None


def checkpoints_prefix(cluster: str) -> str:
    """The prefix of the journal's checkpoints."""
    return f"{cluster}/checkpoints/"


def checkpoint_prefix(cluster: str, epoch: int, number: int) -> str:
    """The prefix of one checkpoint. Prefixes sort as (epoch, number)."""
    return f"{checkpoints_prefix(cluster)}{epoch:010d}/{number:012d}/"


def checkpoint_part_key(cluster: str, epoch: int, number: int, part: int) -> ObjectKey:
    return checked_key(f"{checkpoint_prefix(cluster, epoch, number)}part-{part:06d}")


def checkpoint_manifest_key(cluster: str, epoch: int, number: int) -> ObjectKey:
    """Written last: a checkpoint without it is not complete."""
    return checked_key(f"{checkpoint_prefix(cluster, epoch, number)}manifest")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CheckpointObject:
    epoch: int
    number: int
    part: int
    """0: the manifest."""


def checkpoint_object_of(key: ObjectKey) -> CheckpointObject | None:
    """Returns which object of which checkpoint a key names; None if it names none."""
    found = _CHECKPOINT.search(key)
    if found is None:
        return None
    return CheckpointObject(epoch=int(found[1]), number=int(found[2]), part=int(found[3] or 0))


def topic_keys_prefix(cluster: str) -> str:
    """The prefix of topics' encrypted keys (`storage/encryption/key_objects.py`)."""
    return f"{cluster}/topic-keys/"


def key_of_topic_key(cluster: str, topic_id: TopicId, key_id: KeyId) -> ObjectKey:
    return checked_key(f"{topic_keys_prefix(cluster)}{topic_id}/{key_id:016x}")


def topic_key_of(key: ObjectKey) -> tuple[TopicId, KeyId] | None:
    """Returns the topic and the id of the topic's key that an object's key names; None if it names none."""
    found = _TOPIC_KEY.search(key)
    if found is None:
        return None
    try:
        topic_id, key_id = TopicId(UUID(found[1])), KeyId(int(found[2], 16))
    except ValueError:
        return None
    return (topic_id, key_id) if 0 < key_id < 1 << 63 and str(topic_id) == found[1] else None


def cluster_of(key: ObjectKey) -> str | None:
    """Returns the cluster in the key of a segment, a merged segment or a history file; None for others."""
    found = _OF_RECORDS.match(key)
    return found[1] if found else None


def ownership_key(cluster: str) -> ObjectKey:
    """The object that says which database owns the bucket (`sequencer/cluster/ownership.py`)."""
    return checked_key(f"{cluster}/ownership")


def segment_key(cluster: str, segment_id: SegmentId) -> ObjectKey:
    return _key(cluster, _UPLOADED, segment_id)


def merged_key(cluster: str, segment_id: SegmentId) -> ObjectKey:
    return _key(cluster, _MERGED, segment_id)


def segment_id_of(key: ObjectKey) -> SegmentId | None:
    """Returns the segment that a key names, merged or not; None if the key is not a segment's."""
    parts = key.split("/")
    if len(parts) < 4 or parts[-3] not in (_UPLOADED, _MERGED):
        return None
    try:
        segment_id = SegmentId(UUID(parts[-1]))
    except ValueError:
        return None
    return segment_id if key == _key("/".join(parts[:-3]), parts[-3], segment_id) else None


def is_merged(key: ObjectKey) -> bool:
    """True if the key names a merged segment."""
    parts = key.rsplit("/", 3)
    return len(parts) == 4 and parts[1] == _MERGED


def is_history_file(key: ObjectKey) -> bool:
    """True if the key names a Parquet file of a topic's history."""
    return key.endswith(".parquet")


def checked_key(text: str) -> ObjectKey:
    """Returns `text` as a key that every store can hold: relative, without empty, `.` or `..` parts. Raises
    ValueError."""
    parts = text.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in text or not text.isprintable():
        raise ValueError(
            f"{text!r} cannot be an object's key: use relative parts separated by single slashes"
        )
    return ObjectKey(text)


def _key(cluster: str, kind: str, segment_id: SegmentId) -> ObjectKey:
    return checked_key(f"{cluster}/{kind}/{segment_id.bytes[-1]:02x}/{segment_id}")
