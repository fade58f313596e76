"""The keys of one topic, read from the bucket: for readers that have no Postgres (Spark's data source and
`tidelog sql`).

Promises:
- Keys are asked for a few at a time, and each within a bound. If the provider does not answer, the rest is
  not asked for.
- A key that cannot be had is no error until something needs it. Then KeyUnavailable names topic and fix.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage.encryption.key_objects import CorruptKeyObject, KeyObjects
from storage.encryption.key_wrapping import KeyUnavailable, KeyWrapping
from storage.encryption.sealed_batches import TopicKey
from storage.encryption.settings import EncryptionSettings
from storage.encryption.topic_keyring import ReadKeyring
from storage.identifiers import KeyId, TopicId
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from storage.stores.side_by_side import side_by_side

_NO_PROVIDER: Final = (
    "set TIDELOG_ENCRYPTION_PROVIDER and TIDELOG_ENCRYPTION_KEY as the agents have them (docs/encryption.md)"
)
_NO_SUCH_KEY: Final = (
    "the bucket has no such key. If the query began before the key was made, run it again. If its copy is "
    "lost (`tidelog doctor`), `tidelog keys rewrap` writes it again. A destroyed key is gone for ever"
)


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
) -> ReadKeyring:
    """Returns the keys that the bucket has of the topic `topic`. Those in `known` are not unwrapped again,
    and are enough while the bucket is away.
    """
    if wrapping is None:
        return ReadKeyring(by_id={}, refused={}, topic=topic, reason=_NO_PROVIDER)
    try:
        listed = await _listed(objects, topic_id, settings.encryption_keys_kept)
    except StoreUnavailable as error:
        reason = f"the bucket does not list the topic's keys: {error}"
        return ReadKeyring(by_id=known or {}, refused={}, topic=topic, reason=reason)
    if len(listed) > settings.encryption_keys_kept:
        most = settings.encryption_keys_kept
        reason = f"the topic has more than {most} keys: raise TIDELOG_ENCRYPTION_KEYS_KEPT"
        return ReadKeyring(by_id={}, refused={}, topic=topic, reason=reason)
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
    return ReadKeyring(by_id=keys, refused=refused, topic=topic, reason=_NO_SUCH_KEY)


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
