"""Whether a store is the one that holds what this database names.

A database and a store that do not belong together look well on their own: an agent would acknowledge records that no
other agent finds, and the garbage collector would forget objects that it never deleted. So the first agent of a
cluster writes an object with an id of its own, and the same id into the database; everybody else compares.

Promises that no two stores are taken for one database's, however many agents start at once or die half way: the
database's row is locked while the object is written. A store may be copied elsewhere with all its objects, this one
among them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self
from uuid import uuid4

from sequencer.database import CommitOutcomeUnknown, Database, Row, SequencerUnavailable
from sequencer.named_sql import load_statements
from storage.byte_arrays import Buffer
from storage.identifiers import ObjectKey
from storage.keys import identity_key
from storage.object_store import ObjectNotFound

SQL = load_statements("cluster")


class WrongStore(Exception):
    """The store belongs to another database, or the database to another store. The message names both."""


class _Objects(Protocol):
    async def put(self, key: ObjectKey, chunks: Sequence[Buffer]) -> None: ...
    async def get(self, key: ObjectKey) -> bytes | memoryview: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    """What the object says."""

    cluster_id: str
    store_id: str

    def encode(self) -> bytes:
        return json.dumps({"cluster_id": self.cluster_id, "store_id": self.store_id}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """None for what no Tidelog has written."""
        try:
            stored = json.loads(data)
            return cls(cluster_id=str(stored["cluster_id"]), store_id=str(stored["store_id"]))
        except (ValueError, TypeError, KeyError):
            return None


class StoreIdentity:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def check(self, store: _Objects, cluster: str, store_url: str) -> bool:
        """Whether this store is the database's; False: the database has none yet. `cluster` is the first part of all
        keys. Raises WrongStore, SequencerUnavailable or StoreUnavailable."""
        [row] = await self._database.fetch(SQL["store"])
        if row.store_id is None:
            return False
        _compare(row, await _read(store, cluster), cluster, store_url)
        return True

    async def bind(self, store: _Objects, cluster: str, store_url: str) -> None:
        """As `check`; a database that has no store yet has this one from now on, unless it is another database's."""
        if not await self.check(store, cluster, store_url):
            try:
                await self._bind_first(store, cluster, store_url)
            except CommitOutcomeUnknown as unknown:  # to be looked at again, as any other call that failed
                raise SequencerUnavailable(str(unknown)) from unknown

    async def _bind_first(self, store: _Objects, cluster: str, store_url: str) -> None:
        async with self._database.transaction() as connection:
            row: Row = await (await connection.execute(SQL["lock_store"])).fetchone()
            found = await _read(store, cluster)
            if row.store_id is not None:
                _compare(row, found, cluster, store_url)
                return
            if found is None:
                found = _Identity(cluster_id=row.cluster_id, store_id=str(uuid4()))
                await store.put(identity_key(cluster), [found.encode()])
            elif found.cluster_id != row.cluster_id:
                raise _of_another_database(row, found, cluster, store_url)
            await connection.execute(SQL["set_store"], {"store_id": found.store_id, "store_name": store_url})


async def _read(store: _Objects, cluster: str) -> _Identity | None:
    """None: it has no such object. Raises WrongStore for one that cannot be read."""
    key = identity_key(cluster)
    try:
        data = bytes(await store.get(key))
    except ObjectNotFound:
        return None
    found = _Identity.decode(data)
    if found is None:
        raise WrongStore(f"the object {key} says nothing that Tidelog wrote: is another program writing there?")
    return found


def _compare(row: Row, found: _Identity | None, cluster: str, store_url: str) -> None:
    if found is None:
        raise WrongStore(
            f"the objects of this database are not in {store_url} under {cluster}/ (there is no"
            f" {identity_key(cluster)}). The database says they are in {row.store_name}: set TIDELOG_STORE_URL"
            " and TIDELOG_CLUSTER as the other agents have them, or TIDELOG_DATABASE_URL to another database"
        )
    if found.cluster_id != row.cluster_id:
        raise _of_another_database(row, found, cluster, store_url)
    if found.store_id != row.store_id:
        raise WrongStore(
            f"{store_url} was begun by an agent of this database that did not finish, and the database has used"
            f" {row.store_name} since: set TIDELOG_STORE_URL to that"
        )


def _of_another_database(row: Row, found: _Identity, cluster: str, store_url: str) -> WrongStore:
    return WrongStore(
        f"{store_url} under {cluster}/ belongs to the database of cluster {found.cluster_id}, and this database is"
        f" that of cluster {row.cluster_id}: set TIDELOG_DATABASE_URL to the other, or TIDELOG_STORE_URL (or"
        " TIDELOG_CLUSTER) to a place of its own"
    )
