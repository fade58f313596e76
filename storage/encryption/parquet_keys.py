"""Parquet files whose records are encrypted with a key of their topic
(docs/decisions/0143-encrypted-history.md).

A file has Parquet's modular encryption: AES-256-GCM, with the footer in the clear and signed. The columns in
`CLEAR_COLUMNS` are in the clear, as the headers of batches are, so the offsets and bounds of row groups need
no key. All others are encrypted, and their statistics with them. Each file has data keys, which the topic's
key encrypts and the file keeps. The footer's key-value metadata names the topic's key.

The name of a file's object has the id of its key, and the footer, which is signed, has that name. So a reader
that knows the name from elsewhere than the bucket refuses what was put in the file's place: a file in the
clear, or another one of the topic (`check_name`).

`ColumnChunkMetaData.statistics` of an encrypted column ends the process if the metadata was read without
keys: read them of `CLEAR_COLUMNS` only.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from storage.encryption.sealed_batches import KEY_BYTES, SealBroken, TopicKey
from storage.identifiers import KeyId

CLEAR_COLUMNS: Final = ("partition", "offset", "timestamp", "timestamp_type")
KEY_METADATA: Final = "tidelog.key_id"
"""The name, in the footer's key-value metadata, of the id of the topic's key: 16 hexadecimal digits."""
NAME_METADATA: Final = "tidelog.file"
"""The name, in the footer's key-value metadata, of the last part of the object's key."""
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
_NAMED_KEY: Final = re.compile(r"-([0-9a-f]{16})\.parquet")
"""The end of an encrypted file's name."""
_NONCE_BYTES: Final = 12
_NO_CACHE: Final = timedelta(seconds=0)


def key_id_of(metadata: pq.FileMetaData) -> KeyId | None:
    """Returns the id of the key that a file needs. None: the file is in the clear. Raises SealBroken."""
    written = (metadata.metadata or {}).get(KEY_METADATA.encode())
    if written is None:
        return None
    text = written.decode(errors="replace")
    if not _KEY_ID.fullmatch(text) or not 0 < int(text, 16) < 1 << 63:
        raise SealBroken(f"no key has the id {text!r} of a Parquet file")
    return KeyId(int(text, 16))


def file_name(stem: str, key: TopicKey | None) -> str:
    """Returns the name of a file that `key` encrypts, or of one in the clear. `stem` is unique, and does not
    end in a part of 16 hexadecimal digits. The writer must add it to the footer as NAME_METADATA.
    """
    return f"{stem}.parquet" if key is None else f"{stem}-{_name(key.key_id)}.parquet"


def check_name(metadata: pq.FileMetaData, object_key: str) -> None:
    """Raises SealBroken if the object is not the encrypted file that its key names. The footer counts once it
    was read with the key: it is signed.
    """
    name = object_key.rpartition("/")[2]
    named = _NAMED_KEY.search(name)
    if named is None:
        return
    key_id = key_id_of(metadata)
    if key_id is None or _name(key_id) != named[1]:
        raise SealBroken(f"{object_key} is not encrypted with the key that its name has")
    if (metadata.metadata or {}).get(NAME_METADATA.encode()) != name.encode():
        raise SealBroken(f"another file was put in the place of {object_key}")


def to_encrypt(key: TopicKey, leaves: list[str]) -> Any:
    """Returns the `encryption_properties` of one file. `leaves` are the paths of all its leaf columns. The
    writer must add `key_metadata(key)` to the file's key-value metadata.
    """
    configuration = pe.EncryptionConfiguration(
        footer_key=_name(key.key_id),
        column_keys={_name(key.key_id): [path for path in leaves if path not in CLEAR_COLUMNS]},
        encryption_algorithm="AES_GCM_V1",
        plaintext_footer=True,
        double_wrapping=False,
        data_key_length_bits=KEY_BYTES * 8,
        cache_lifetime=_NO_CACHE,
    )
    factory = pe.CryptoFactory(lambda _: _TopicKeys({key.key_id: key}))
    return factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)


def key_metadata(key: TopicKey) -> dict[str, str]:
    return {KEY_METADATA: _name(key.key_id)}


def to_decrypt(keys: Mapping[KeyId, TopicKey]) -> Any:
    """Returns the `decryption_properties` for files of these keys. Files in the clear need none, and may have
    them.

    A file of another key, or one that was changed, fails to read as an OSError.
    """
    factory = pe.CryptoFactory(lambda _: _TopicKeys(keys))
    return factory.file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration(cache_lifetime=_NO_CACHE)
    )


class _TopicKeys(pe.KmsClient):
    """Encrypts data keys with topics' keys, in this process. Each data key is bound to the topic and key."""

    def __init__(self, keys: Mapping[KeyId, TopicKey]) -> None:
        super().__init__()
        self._keys = keys

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        key = self._keys[KeyId(int(master_key_identifier, 16))]
        nonce = os.urandom(_NONCE_BYTES)
        return base64.b64encode(nonce + _cipher(key).encrypt(nonce, key_bytes, _bound_to(key))).decode()

    def unwrap_key(  # type: ignore[override]  # pyarrow takes bytes, and its stubs say str
        self, wrapped_key: str | bytes, master_key_identifier: str | bytes
    ) -> bytes:
        name = _text(master_key_identifier)
        key = self._keys.get(KeyId(int(name, 16))) if _KEY_ID.fullmatch(name) else None
        if key is None:
            raise ValueError(f"the file was encrypted with the key {name!r}, which is not at hand")
        try:
            data = base64.b64decode(_text(wrapped_key), validate=True)
            return _cipher(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound_to(key))
        except (InvalidTag, ValueError, binascii.Error):
            raise ValueError("a data key of the file is damaged, or of another topic") from None


def _cipher(key: TopicKey) -> AESGCM:
    return AESGCM(key.derived(b"tidelog parquet data keys 1"))


def _bound_to(key: TopicKey) -> bytes:
    return key.topic_id.bytes + key.key_id.to_bytes(8, "big")


def _name(key_id: KeyId) -> str:
    return f"{key_id:016x}"


def _text(given: str | bytes) -> str:
    return given if isinstance(given, str) else given.decode(errors="replace")
