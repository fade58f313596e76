"""Where objects lie in the bucket.

Segments spread over 256 prefixes by the last random byte of their id, because stores limit requests per prefix
(DESIGN §3); merged segments have a prefix of their own, so that a key tells a reader that it reads history. Promises
that a key holds the segment's id, so that a bucket can be matched with the sequencer by its listing alone.
"""

from uuid import UUID

from storage.identifiers import ObjectKey, SegmentId

_UPLOADED = "segments"
_MERGED = "merged"


def segments_prefix(cluster: str) -> str:
    """The prefix under which all segments lie that agents of a cluster upload."""
    return f"{cluster}/{_UPLOADED}/"


def merged_prefix(cluster: str) -> str:
    """The prefix under which all merged segments of a cluster lie (DESIGN §9)."""
    return f"{cluster}/{_MERGED}/"


def backups_prefix(cluster: str) -> str:
    """The prefix of Postgres's backups. `tidelog backup prune` deletes there, Tidelog's housekeeping never does."""
    return f"{cluster}/postgres-backups/"


def identity_prefix(cluster: str) -> str:
    """The prefix of what says whose all the rest is (`sequencer/store_identity.py`)."""
    return f"{cluster}/store-identity/"


def identity_key(cluster: str, store_id: str) -> ObjectKey:
    return checked_key(f"{identity_prefix(cluster)}{store_id}")


def segment_key(cluster: str, segment_id: SegmentId) -> ObjectKey:
    return _key(cluster, _UPLOADED, segment_id)


def merged_key(cluster: str, segment_id: SegmentId) -> ObjectKey:
    return _key(cluster, _MERGED, segment_id)


def segment_id_of(key: ObjectKey) -> SegmentId | None:
    """The segment a key names, merged or not, or None if the key is not a segment's."""
    parts = key.split("/")
    if len(parts) < 4 or parts[-3] not in (_UPLOADED, _MERGED):
        return None
    try:
        segment_id = SegmentId(UUID(parts[-1]))
    except ValueError:
        return None
    return segment_id if key == _key("/".join(parts[:-3]), parts[-3], segment_id) else None


def is_merged(key: ObjectKey) -> bool:
    """Whether the key is a merged segment's."""
    parts = key.rsplit("/", 3)
    return len(parts) == 4 and parts[1] == _MERGED


def checked_key(text: str) -> ObjectKey:
    """`text` as a key that every store can hold: relative, without empty, `.` or `..` parts; raises ValueError."""
    parts = text.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in text or not text.isprintable():
        raise ValueError(f"{text!r} cannot be an object's key: use relative parts separated by single slashes")
    return ObjectKey(text)


def _key(cluster: str, kind: str, segment_id: SegmentId) -> ObjectKey:
    return checked_key(f"{cluster}/{kind}/{segment_id.bytes[-1]:02x}/{segment_id}")
