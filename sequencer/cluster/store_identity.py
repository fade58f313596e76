"""Checks that a store is the one that holds this database's objects.

A database and a store that do not belong together look well on their own. But an agent would acknowledge
records that no other agent finds, and the garbage collector would forget objects that it never deleted. So
the first agent of a cluster writes an object with an id in its key, and the same id into the database. All
others look for that object.

Promises: no two stores are taken for one database's, and no store for two databases', however many agents
start at once, pause or die half way. The database's row is locked meanwhile, and an object that comes late
has another key, which no agent looks for. While no agent runs, a store may be copied elsewhere with all its
objects, these included.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from sequencer.database.database import CommitOutcomeUnknown, Database, Row, SequencerUnavailable
from sequencer.database.named_sql import load_statements
from storage.identifiers import ObjectKey
from storage.segments.keys import identity_key, identity_prefix
from storage.stores.object_store import ObjectStore, is_there

SQL = load_statements("cluster")
_CLUSTER_ID = "cluster_id"


class WrongStore(Exception):
    """The store belongs to another database, or the database to another store. The message names both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a cluster's objects should be."""

    store: ObjectStore
    cluster: str
    store_url: str

    def __str__(self) -> str:
        return f"{self.store_url} under {self.cluster}/"

    async def check(self, row: Row) -> None:
        """Raises WrongStore unless the object that the database names is here."""
        key = identity_key(self.cluster, row.store_id)
        if not await is_there(self.store, key):
            raise WrongStore(
                f"the objects of this database are not in {self}: there is no {key}. The first agent had "
                "them in"
                f" {row.store_name}. Set TIDELOG_STORE_URL and TIDELOG_CLUSTER as the other agents have "
                "them, or"
                " TIDELOG_DATABASE_URL to another database. (Should only that object be lost, write it again:"
                f" {_content(row).decode().strip()})"
            )

    async def refuse_others(self, row: Row) -> None:
        """Raises WrongStore if another database has its objects here."""
        async for info in self.store.list(identity_prefix(self.cluster)):
            owner = _owner(bytes(await self.store.get(info.key)))
            if owner != row.cluster_id:
                raise WrongStore(
                    f"{self} belongs to the database of cluster {owner or '?'} ({info.key}), and this "
                    "database is that"
                    f" of cluster {row.cluster_id}: set TIDELOG_DATABASE_URL to the other, or "
                    "TIDELOG_STORE_URL (or TIDELOG_CLUSTER) to an unused place"
                )

    async def refuse_without(self, keys: Sequence[ObjectKey]) -> None:
        """Raises WrongStore if there are keys and none of them exists here."""
        if keys and not any([await is_there(self.store, key) for key in keys]):
            raise WrongStore(
                f"the database names objects that are not in {self.store_url}, {keys[0]} among them: set"
                " TIDELOG_STORE_URL to the store that has them, or TIDELOG_DATABASE_URL to another database"
            )


class StoreIdentity:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def check(self, store: ObjectStore, cluster: str, store_url: str) -> bool:
        """True if this store is the database's. False: the database has none yet. `cluster` is the first part
        of all keys. Raises WrongStore, SequencerUnavailable or StoreUnavailable."""
        [row] = await self._database.run(SQL["store"])
        if row.store_id is None:
            return False
        await _Place(store=store, cluster=cluster, store_url=store_url).check(row)
        self._database.keep_to(row.store_id)
        return True

    async def bind(self, store: ObjectStore, cluster: str, store_url: str) -> None:
        """As `check`. A database without a store gets this one, unless it is another database's."""
        if not await self.check(store, cluster, store_url):
            try:
                store_id = await self._bind_first(_Place(store=store, cluster=cluster, store_url=store_url))
            except CommitOutcomeUnknown as unknown:  # check again, as after any failed call
                raise SequencerUnavailable(str(unknown)) from unknown
            self._database.keep_to(store_id)

    async def _bind_first(self, place: _Place) -> str:
        async with self._database.transaction() as connection:
            row: Row = await (await connection.execute(SQL["lock_store"])).fetchone()
            if row.store_id is not None:
                await place.check(row)
                return str(row.store_id)
            newest = await (await connection.execute(SQL["newest_objects"])).fetchall()
            await place.refuse_others(row)
            await place.refuse_without([each.object_key for each in newest])
            store_id = str(uuid4())
            await place.store.put(identity_key(place.cluster, store_id), [_content(row)])
            # Of two databases that begin here at once, at least one sees the other.
            await place.refuse_others(row)
            await connection.execute(SQL["set_store"], {"store_id": store_id, "store_name": str(place)})
        return store_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The content of an identity object."""

    cluster_id: str
    store_id: str


async def identity_of(store: ObjectStore, cluster: str) -> Identity | None:
    """Returns the owner of the objects here. None: no object says so, or several do. Raises
    StoreUnavailable."""
    prefix = identity_prefix(cluster)
    found = [(info.key, _owner(bytes(await store.get(info.key)))) async for info in store.list(prefix)]
    identities = [
        Identity(cluster_id=owner, store_id=key.removeprefix(prefix)) for key, owner in found if owner
    ]
    return identities[0] if len(identities) == 1 else None


def _content(row: Row) -> bytes:
    return json.dumps({_CLUSTER_ID: row.cluster_id}).encode() + b"\n"


def _owner(data: bytes) -> str | None:
    """Returns the cluster's id; None for data that Tidelog did not write."""
    try:
        return str(json.loads(data)[_CLUSTER_ID])
    except (ValueError, TypeError, KeyError):
        return None
