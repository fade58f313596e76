"""Which servers have backups in the bucket, and how far their archived WAL reaches. Lists only the backups' prefix."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from storage.segments.keys import backups_prefix
from storage.stores.object_store import ObjectStore

_WAL: Final = re.compile(r"(?P<server>[^/]+)/wals/[0-9A-F]{16}/(?P<name>[0-9A-F]{24})(\.[a-z0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArchive:
    """`wal_names` are whole WAL files. `newest_wal_at` is when the last of them was uploaded."""

    wal_names: frozenset[str] = frozenset()
    newest_wal_at: datetime | None = None
    size_bytes: int = 0


async def archived(store: ObjectStore, cluster: str) -> Mapping[str, ServerArchive]:
    """By server. Raises StoreUnavailable."""
    prefix = backups_prefix(cluster)
    names: dict[str, set[str]] = {}
    newest: dict[str, datetime] = {}
    sizes: dict[str, int] = {}
    async for info in store.list(prefix):
        path = info.key.removeprefix(prefix)
        server = path.split("/", 1)[0]
        sizes[server] = sizes.get(server, 0) + info.size_bytes
        if found := _WAL.fullmatch(path):
            names.setdefault(server, set()).add(found["name"])
            newest[server] = max(newest.get(server, info.modified_at), info.modified_at)
    return {
        server: ServerArchive(
            wal_names=frozenset(names.get(server, ())), newest_wal_at=newest.get(server), size_bytes=size
        )
        for server, size in sizes.items()
    }
