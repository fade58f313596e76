"""All keys of one topic, for a job or a query that runs in several processes. They can be pickled.

Promise: what the keyring cannot open is an error that names the key and the reason, never data that looks
damaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from storage.batches.byte_arrays import Buffer
from storage.encryption.key_wrapping import KeyUnavailable
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


def key_of_id(keyring: ReadKeyring | None, key_id: KeyId) -> TopicKey:
    """Raises KeyUnavailable."""
    if keyring is None:
        raise KeyUnavailable(f"the key {key_id:016x} is needed, and this job was given no keys of the topic")
    key = keyring.by_id.get(key_id)
    if key is None:
        whose = f"topic {keyring.topic!r} is encrypted with " if keyring.topic else ""
        reason = keyring.refused.get(key_id) or keyring.reason or "the topic has no key of this id"
        raise KeyUnavailable(f"{whose}the key {key_id:016x}: {reason}")
    return key


def opened_batches(keyring: ReadKeyring | None, batches: Buffer, partition: int) -> Buffer:
    """Returns whole batches, those opened that are sealed. Raises KeyUnavailable or SealBroken."""
    needed = sealed_counts(batches)
    if not needed:
        return batches
    try:
        keys = {key_id: key_of_id(keyring, key_id) for key_id in needed}
    except KeyUnavailable:
        check_seals(batches)  # no key has an id that was damaged
        raise
    return opened(batches, partition, keys)
