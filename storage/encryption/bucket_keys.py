"""The keys of one topic, read from the bucket: for readers that have no Postgres (Spark's data source and
`tidelog sql`).

Promises:
- Keys are asked for a few at a time, and each within a bound. If the provider does not answer, the rest is
  not asked for.
- A key that cannot be had is no error until something needs it. Then KeyUnavailable names topic and fix.
- `KeysAtHand` can be pickled, and shows no key.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from storage.batches.byte_arrays import Buffer
from storage.batches.record_batch import index_batches
from storage.encryption.key_objects import CorruptKeyObject, KeyObjects
from storage.encryption.key_wrapping import KeyUnavailable, KeyWrapping
from storage.encryption.sealed_batches import (
    SealBroken,
    TopicKey,
    check_seals,
    is_sealed,
    sealing_key_id,
)
from storage.encryption.settings import EncryptionSettings
from storage.identifiers import KeyId, TopicId
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from storage.stores.side_by_side import side_by_side

_NO_PROVIDER: Final = (
    "set TIDELOG_ENCRYPTION_PROVIDER and TIDELOG_ENCRYPTION_KEY as the agents have them (docs/encryption.md)"
)


class Opened(NamedTuple):
    batches: Buffer
    is_sound: bool
    """False if a sealed batch is damaged, or the batches do not fill the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAtHand:
    """The keys of one topic that this process has."""

    topic: str
    keys: Mapping[KeyId, TopicKey] = field(default_factory=dict, repr=False)
    refused: Mapping[KeyId, str] = field(default_factory=dict, repr=False)
    """Why keys that the bucket has could not be had."""
    reason: str = ""
    """Why no key could be had."""

    def key(self, key_id: KeyId) -> TopicKey:
        """Raises KeyUnavailable."""
        found = self.keys.get(key_id)
        if found is not None:
            return found
        reason = self.refused.get(key_id) or self.reason
        if not reason:
            reason = (
                "the bucket has no such key. If the query began before the key was made, run it again. If "
                "its copy is lost (`tidelog doctor`), `tidelog keys rewrap` writes it again. A destroyed key "
                "is gone for ever"
            )
        raise KeyUnavailable(f"topic {self.topic!r} is encrypted with the key {key_id:016x}: {reason}")

    def opened(self, batches: Buffer, partition: int) -> Opened:
        """Opens those of some batches that are sealed. A damaged batch stays as it is, so that its decoding
        fails and that of others does not. Raises KeyUnavailable.
        """
        view, parts, is_sound, has_sealed = memoryview(batches), list[Buffer](), True, False
        try:
            places = index_batches(view, 0, len(view)).tolist()
        except ValueError:
            return Opened(batches, False)
        for position, size_bytes, _ in places:
            batch = view[position : position + size_bytes]
            if is_sealed(batch):
                has_sealed = True
                try:
                    parts.append(self._opened(batch, partition))
                    continue
                except SealBroken:
                    is_sound = False
            parts.append(batch)
        return Opened(b"".join(parts) if has_sealed else batches, is_sound)

    def _opened(self, batch: Buffer, partition: int) -> bytes:
        key_id = sealing_key_id(batch)
        if key_id not in self.keys:
            check_seals(batch)  # no key has an id that was damaged
        return self.key(key_id).open(batch, partition)

    def to_decrypt(self, metadata: Any) -> Any:
        """Returns the `decryption_properties` of a Parquet file with this metadata. None: it needs none.
        Raises KeyUnavailable, and SealBroken for a file that names no possible key.
        """
        from storage.encryption.parquet_keys import key_id_of, to_decrypt  # pyarrow takes 0.1 s

        key_id = key_id_of(metadata)
        return None if key_id is None else to_decrypt({key_id: self.key(key_id)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    reason: str
    is_late: bool = False
    """The provider or the bucket did not answer in time."""


async def read_topic_keys(
    objects: KeyObjects,
    wrapping: KeyWrapping | None,
    settings: EncryptionSettings,
    *,
    topic: str,
    topic_id: TopicId,
    known: Mapping[KeyId, TopicKey] | None = None,
) -> KeysAtHand:
    """Returns the keys that the bucket has of the topic `topic`. Those in `known` are not unwrapped again."""
    if wrapping is None:
        return KeysAtHand(topic=topic, reason=_NO_PROVIDER)
    try:
        listed = await _listed(objects, topic_id, settings.encryption_keys_kept)
    except StoreUnavailable as error:
        return KeysAtHand(topic=topic, reason=f"the bucket does not list the topic's keys: {error}")
    if len(listed) > settings.encryption_keys_kept:
        return KeysAtHand(
            topic=topic,
            reason=f"the topic has more than {settings.encryption_keys_kept} keys: raise "
            "TIDELOG_ENCRYPTION_KEYS_KEPT",
        )
    keys = {key_id: key for key_id, key in (known or {}).items() if key_id in listed}
    refused: dict[KeyId, str] = {}
    missing = [key_id for key_id in listed if key_id not in keys]
    late = ""
    for first in range(0, len(missing), settings.encryption_calls):
        some = missing[first : first + settings.encryption_calls]
        if late:
            refused |= dict.fromkeys(some, late)
            continue
        answers = await side_by_side(
            _one(objects, wrapping, topic_id, key_id, settings.encryption_timeout_s) for key_id in some
        )
        for key_id, answer in zip(some, answers, strict=True):
            if isinstance(answer, TopicKey):
                keys[key_id] = answer
            else:
                refused[key_id] = answer.reason
                late = answer.reason if answer.is_late else late
    return KeysAtHand(topic=topic, keys=keys, refused=refused)


async def _listed(objects: KeyObjects, topic_id: TopicId, most: int) -> list[KeyId]:
    """Ends after one more than `most`."""
    found: list[KeyId] = []
    async for _, key_id in objects.list(topic_id):
        found.append(key_id)
        if len(found) > most:
            break
    return found


async def _one(
    objects: KeyObjects, wrapping: KeyWrapping, topic_id: TopicId, key_id: KeyId, timeout_s: float
) -> TopicKey | _Refused:
    try:
        async with asyncio.timeout(timeout_s):
            wrapped = await objects.get(topic_id, key_id)
            secret = await wrapping.unwrap(wrapped.wrapped_by, wrapped.wrapped, topic_id, key_id)
            return TopicKey(topic_id, key_id, secret)
    except TimeoutError:
        return _Refused(reason=f"it did not come within {timeout_s:g} s", is_late=True)
    except ObjectNotFound:
        return _Refused(reason="it was destroyed a moment ago")
    except CorruptKeyObject as error:
        return _Refused(
            reason=f"its copy in the bucket is damaged ({error}): `tidelog keys rewrap` writes it"
        )
    except (StoreUnavailable, KeyUnavailable, ValueError) as error:
        return _Refused(reason=str(error))
