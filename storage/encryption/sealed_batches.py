"""Batches whose records are encrypted with a key of their topic (docs/decisions/0139-sealed-batches.md).

A sealed batch is a batch v2 with a right length and CRC. Its header is in the clear and names compression 7,
which no client may send and no reader can decompress. In place of the records it has

    format u8 = 1 | compression u8 | key id u64 | number u64 | salt 16 bytes | ciphertext | tag 16 bytes

A key's id is random, so no two keys of a topic have the same, also if the first one was lost.

The salt is random, made once for each `TopicKey` in memory. HKDF makes of it and the topic's key the key of
AES-256-GCM, and the nonce is the batch's number among those of the salt. So no pair of key and nonce repeats.
Authenticated are the header from the attributes on, these fields, the topic's id and the partition. Base
offset and leader epoch are not, because they are patched.
"""

import os
import struct
from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from storage.batches.byte_arrays import Buffer, as_byte_array
from storage.batches.record_batch import (
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    index_batches,
    read_header,
)
from storage.identifiers import KeyId, TopicId

KEY_BYTES: Final = 32
_HEAD: Final = struct.Struct(">BBQQ16s")
_TAG_BYTES: Final = 16
SEAL_BYTES: Final = _HEAD.size + _TAG_BYTES
"""What sealing adds to a batch."""
_FORMAT: Final = 1
_SEALED: Final = 7
_ATTRIBUTES: Final = 22
_LENGTH: Final = 8
_KEY_ID: Final = HEADER_BYTES + 2
_MOST_PER_SALT: Final = 1 << 32
_SALTS_KEPT: Final = 16
"""Of each key, 3 KB each. Another one costs 5 µs."""
_INFO: Final = b"tidelog sealed batch 1"


class SealBroken(Exception):
    """A sealed batch is damaged, has another place than it was sealed for, or the key is another."""


def is_sealed(batch: Buffer, position: int = 0) -> bool:
    """True if the whole batch at `position` is sealed."""
    return int(batch[position + _ATTRIBUTES]) & _SEALED == _SEALED


class TopicKey:
    """One key of a topic. Threads may share it."""

    def __init__(self, topic_id: TopicId, key_id: KeyId, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a topic's key has {KEY_BYTES} bytes, not {len(secret)}")
        self.topic_id = topic_id
        self.key_id = key_id
        self._secret = secret
        self._known: OrderedDict[bytes, AESGCM] = OrderedDict()
        self._own = self._new_salt()

    def __repr__(self) -> str:
        return f"TopicKey({self.topic_id}, {self.key_id:016x})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process seals with a salt that it makes."""
        return TopicKey, (self.topic_id, self.key_id, self._secret)

    def derived(self, purpose: bytes) -> bytes:
        """Returns a key of KEY_BYTES for another purpose than sealing batches."""
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(self._secret)

    def seal(self, batch: Buffer, partition: int) -> bytes:
        """Returns the sealed copy of a valid batch."""
        view = memoryview(batch)
        own = self._own  # read once: another thread may replace it, and a number counts for its salt alone
        number = next(own[2])
        if number >= _MOST_PER_SALT:
            own = self._own = self._new_salt()
            number = next(own[2])
        salt, cipher, _ = own
        header = bytearray(view[:HEADER_BYTES])
        head = _HEAD.pack(_FORMAT, header[_ATTRIBUTES] & _SEALED, self.key_id, number, salt)
        struct.pack_into(">i", header, _LENGTH, len(view) + SEAL_BYTES - LENGTH_OVERHEAD_BYTES)
        header[_ATTRIBUTES] |= _SEALED
        covered = bytes(header[CRC_START:]) + head
        sealed = cipher.encrypt(_nonce(number), view[HEADER_BYTES:], covered + self._place(partition))
        struct.pack_into(">I", header, CRC_POSITION, crc32c(sealed, crc32c(covered)))
        return b"".join((header, head, sealed))

    def open(self, batch: Buffer, partition: int) -> bytes:
        """Returns the batch as it was before it was sealed, with this one's base offset and leader epoch.
        Raises SealBroken.
        """
        view = memoryview(batch)
        if len(view) < HEADER_BYTES + SEAL_BYTES or not is_sealed(view):
            raise SealBroken("the batch is not sealed, or cut short")
        header, start = bytearray(view[:HEADER_BYTES]), HEADER_BYTES + _HEAD.size
        form, compression, key_id, number, salt = _HEAD.unpack_from(view, HEADER_BYTES)
        if form != _FORMAT or key_id != self.key_id or compression >= _SEALED:
            raise SealBroken(f"format {form} and key {key_id:016x} of a sealed batch are not known")
        covered = bytes(view[CRC_START:start])
        try:
            records = self._cipher(salt).decrypt(
                _nonce(number), view[start:], covered + self._place(partition)
            )
        except InvalidTag:
            raise SealBroken("a sealed batch is damaged, in another place, or of another key") from None
        header[_ATTRIBUTES] = header[_ATTRIBUTES] & ~_SEALED | compression
        struct.pack_into(">i", header, _LENGTH, HEADER_BYTES + len(records) - LENGTH_OVERHEAD_BYTES)
        struct.pack_into(">I", header, CRC_POSITION, crc32c(records, crc32c(header[CRC_START:])))
        return b"".join((header, records))

    def _place(self, partition: int) -> bytes:
        return self.topic_id.bytes + struct.pack(">i", partition)

    def _new_salt(self) -> "tuple[bytes, AESGCM, count[int]]":
        salt = os.urandom(16)
        return salt, self._derived(salt), count()

    def _cipher(self, salt: bytes) -> AESGCM:
        known = self._known.get(salt)
        if known is None:
            known = self._known[salt] = self._derived(salt)
            while len(self._known) > _SALTS_KEPT:
                self._known.popitem(last=False)
        return known

    def _derived(self, salt: bytes) -> AESGCM:
        return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=_INFO).derive(self._secret))


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def sealed_counts(batches: Buffer) -> Mapping[KeyId, int]:
    """Returns how many of these whole batches each key sealed, by its id. Raises SealBroken."""
    found = _sealed(batches)
    if not len(found):
        return {}
    if int(found["size_bytes"].min()) < HEADER_BYTES + SEAL_BYTES:
        raise SealBroken("a sealed batch is cut short")
    places = found["position"][:, None] + np.arange(_KEY_ID, _KEY_ID + 8)
    written = np.ascontiguousarray(as_byte_array(batches)[places]).view(">u8")
    ids, counts = np.unique(written, return_counts=True)
    for key_id in ids.tolist():
        if not 0 < key_id < 1 << 63:
            raise SealBroken(f"no key has the id {key_id:016x} of a sealed batch")
    return dict(zip(map(KeyId, ids.tolist()), counts.tolist(), strict=True))


def key_ids(batches: Buffer) -> set[KeyId]:
    """Returns the ids of the keys that sealed some of these whole batches. Raises SealBroken."""
    return set(sealed_counts(batches))


def _sealed(batches: Buffer) -> NDArray[Any]:
    """The index (`index_batches`) of those that are sealed. Raises SealBroken."""
    try:
        found = index_batches(batches, 0, len(batches))
    except ValueError as error:
        raise SealBroken(f"a batch is cut short or has a wrong length: {error}") from None
    sealed: NDArray[Any] = found[as_byte_array(batches)[found["position"] + _ATTRIBUTES] & _SEALED == _SEALED]
    return sealed


def check_seals(batches: Buffer) -> None:
    """Checks the CRCs of those of these whole batches that are sealed, which needs no key. Raises
    SealBroken."""
    view = memoryview(batches)
    for position, size_bytes, _ in _sealed(batches).tolist():
        [crc] = struct.unpack_from(">I", view, position + CRC_POSITION)
        if crc32c(view[position + CRC_START : position + size_bytes]) != crc:
            raise SealBroken("a sealed batch is damaged")


def opened(batches: Buffer, partition: int, keys: Mapping[KeyId, TopicKey]) -> bytes:
    """Returns whole batches with those opened that are sealed. `keys` has all of `key_ids`. Raises
    SealBroken."""
    view, parts = memoryview(batches), list[Buffer]()
    for position, size_bytes, _ in index_batches(view, 0, len(view)).tolist():
        batch = view[position : position + size_bytes]
        if is_sealed(batch):
            key_id = KeyId(_HEAD.unpack_from(batch, HEADER_BYTES)[2])
            parts.append(keys[key_id].open(batch, partition))
        else:
            parts.append(batch)
    return b"".join(parts)


def sealed_batches(batches: Buffer, partition: int, key: TopicKey) -> bytes:
    """Returns valid batches that lie back to back, each sealed."""
    view = memoryview(batches)
    return b"".join(
        key.seal(view[position : position + size_bytes], partition)
        for position, size_bytes, _ in index_batches(view, 0, len(view)).tolist()
    )


def sealed_records(batches: Buffer, partition: int, key: TopicKey) -> bytes:
    """As `sealed_batches`, for batches that are written to the log. Those without records and those of a
    transaction's end stay in the clear, as agents write them.
    """
    view, parts = memoryview(batches), list[Buffer]()
    for position, size_bytes, _ in index_batches(view, 0, len(view)).tolist():
        batch = view[position : position + size_bytes]
        header = read_header(batch)
        is_clear = header.is_control or not header.record_count
        parts.append(batch if is_clear else key.seal(batch, partition))
    return b"".join(parts)
