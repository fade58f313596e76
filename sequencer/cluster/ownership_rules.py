"""Decides what a database may do, given the ownership object in the bucket
(`sequencer/cluster/ownership.py`). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, ConfigDict

WATCH_RATCHETS = 3
"""One more than an ownership counts for. By then a living owner has ratcheted, even if one of its holders
died."""
_WAYS_OUT = (
    "Nothing is served, merged or deleted here. If this database is to own the bucket, run `tidelog recover"
    " --take-over`; if it is a copy to try things with, give it a separate bucket or prefix "
    "(TIDELOG_STORE_URL)"
)


class OwnerObject(BaseModel):
    """What the object in the bucket says. Fields that a later version adds are ignored."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    nonce: UUID
    cluster_id: str
    written_at: datetime
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The object as one read found it. `tag` None: there is no object. `owner` None: it is unreadable."""

    tag: str | None
    owner: OwnerObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A running Postgres and the database in it. A copy of the files differs only in its start time."""

    system_identifier: int
    database_oid: int
    timeline: int
    postmaster_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The database's row."""

    epoch: int
    nonces: Sequence[UUID]
    home: Home | None
    """None: it was never ratcheted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """The next nonce may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFirst:
    """The object must first stay as it is for a while. `what` names it and the watcher."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    because: str


def judge(known: Known, here: Home, seen: Seen, key: str) -> Proceed | WatchFirst | Lost:
    """Decides what a holder may do after it has read `seen` at `key`."""
    if known.home is not None and (known.home.system_identifier, known.home.database_oid) != (
        here.system_identifier,
        here.database_oid,
    ):
        because = "this database is a restored dump or another copy of the one that owns the bucket"
        return Lost(
            because=f"{because}: its system identifier or its id in Postgres has changed. {_WAYS_OUT}"
        )
    if seen.tag is not None and seen.owner is None:
        return Lost(because=f"the object {key} says who owns the bucket, and cannot be read. {_WAYS_OUT}")
    owner = seen.owner
    if owner is not None and (
        owner.epoch > known.epoch or (owner.epoch == known.epoch and owner.nonce not in known.nonces)
    ):
        return Lost(
            because=f"another database owns the bucket: {key} has epoch {owner.epoch} and a nonce that "
            "this database"
            f" never wrote (cluster {owner.cluster_id}, written {owner.written_at:%Y-%m-%d %H:%M:%S %Z} by"
            f" {owner.writer}). {_WAYS_OUT}"
        )
    if known.home is not None and known.home != here:
        what = "no object" if owner is None else f"{owner.epoch}/{owner.nonce}"
        return WatchFirst(
            what=f"{what} since {here.postmaster_started_at.isoformat()} on timeline {here.timeline}"
        )
    return Proceed()
