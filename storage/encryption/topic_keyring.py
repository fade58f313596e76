"""All keys of one topic, for a job or a query that runs in several processes. They can be pickled.

Promise: what the keyring cannot open is an error that names the key and the reason, never data that looks
damaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from storage.batches.byte_arrays import Buffer
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.parquet_keys import key_id_of, to_decrypt
from storage.encryption.sealed_batches import TopicKey, check_seals, opened, sealed_counts
from storage.identifiers import KeyId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeyring:
    """What reads. A key that could not be had is an error only where something needs it."""

    by_id: Mapping[KeyId, TopicKey]
    """Those that could be had."""
    refused: Mapping[KeyId, str]
    """Why the others could not be had."""
    topic: str = ""
    """Its name, for errors."""
    reason: str = ""
    """Why no key could be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKeyring(ReadKeyring):
    newest: TopicKey
    """Encrypts what the job writes. One of `by_id`."""


def opened_batches(keyring: ReadKeyring | None, batches: Buffer, partition: int) -> Buffer:
    """Returns whole batches, those opened that are sealed. Raises KeyUnavailable or SealBroken."""
    needed = sealed_counts(batches)
    if not needed:
        return batches
    missing = next((key_id for key_id in needed if keyring is None or key_id not in keyring.by_id), None)
    if missing is not None:
        check_seals(batches)  # no key has an id that was damaged
        raise _unavailable(keyring, missing)
    assert keyring is not None
    return opened(batches, partition, keyring.by_id)


def decryption_of(keyring: ReadKeyring | None, metadata: pq.FileMetaData) -> Any:
    """Returns the `decryption_properties` of a file, given its metadata read without keys. None: the file is
    in the clear. Raises KeyUnavailable or SealBroken.
    """
    key_id = key_id_of(metadata)
    if key_id is None:
        return None
    if keyring is None or key_id not in keyring.by_id:
        raise _unavailable(keyring, key_id)
    return to_decrypt({key_id: keyring.by_id[key_id]})


def _unavailable(keyring: ReadKeyring | None, key_id: KeyId) -> KeyUnavailable:
    if keyring is None:
        return KeyUnavailable(f"the key {key_id:016x} is needed, and this job was given no keys of the topic")
    whose = f"topic {keyring.topic!r} is encrypted with " if keyring.topic else ""
    why = keyring.refused.get(key_id) or keyring.reason or "the topic has no key of this id"
    return KeyUnavailable(f"{whose}the key {key_id:016x}: {why}")
