"""All keys of one topic, for a job that runs in several processes. It can be pickled.

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
class TopicKeyring:
    newest: TopicKey
    """Encrypts what the job writes."""
    by_id: Mapping[KeyId, TopicKey]
    """Those that could be had, `newest` among them."""
    refused: Mapping[KeyId, str]
    """Why the others could not be had."""


def key_of_id(keyring: TopicKeyring | None, key_id: KeyId) -> TopicKey:
    """Raises KeyUnavailable."""
    if keyring is None:
        raise KeyUnavailable(f"the key {key_id:016x} is needed, and this job was given no keys of the topic")
    key = keyring.by_id.get(key_id)
    if key is None:
        reason = keyring.refused.get(key_id, "the topic has no key of this id")
        raise KeyUnavailable(f"the key {key_id:016x}: {reason}")
    return key


def opened_batches(keyring: TopicKeyring | None, batches: Buffer, partition: int) -> Buffer:
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
