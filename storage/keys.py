"""Where objects lie in the bucket.

Segments spread over 256 prefixes by the last random byte of their id, because stores limit requests per prefix
(DESIGN §3). Promises that a key holds the segment's id, so that a bucket can be matched with the sequencer by its
listing alone.
"""

from uuid import UUID

from storage.identifiers import ObjectKey, SegmentId


def segments_prefix(cluster: str) -> str:
    """The prefix under which all segments of a cluster lie."""
    return f"{cluster}/segments/"


def segment_key(cluster: str, segment_id: SegmentId) -> ObjectKey:
    return checked_key(f"{segments_prefix(cluster)}{segment_id.bytes[-1]:02x}/{segment_id}")


def segment_id_of(key: ObjectKey) -> SegmentId | None:
    """The segment a key names, or None if the key is not a segment's."""
    parts = key.split("/")
    if len(parts) < 4 or parts[-3] != "segments":
        return None
    try:
        segment_id = SegmentId(UUID(parts[-1]))
    except ValueError:
        return None
    return segment_id if key == segment_key("/".join(parts[:-3]), segment_id) else None


def checked_key(text: str) -> ObjectKey:
    """`text` as a key that every store can hold: relative, without empty, `.` or `..` parts; raises ValueError."""
    parts = text.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in text or not text.isprintable():
        raise ValueError(f"{text!r} cannot be an object's key: use relative parts separated by single slashes")
    return ObjectKey(text)
