"""Whether this database owns the bucket (docs/design/ownership.md#the-ratchet).

A copied database has the identity of its original, so the bucket itself names its owner: the object
`<cluster>/ownership` holds an epoch and a nonce. A holder ratchets it about once a minute: read the object,
compare it with the row of this database, commit the next nonce as pending, put it, read it back, confirm it.

Promises:
- A holder that finds a nonce which its database never wrote has lost the bucket. The row says why, until a
  take-over.
- A crash, a lost answer or a second holder at any step fences no database from its own bucket.
- An ownership counts for two ratchets, from just before its put, and only in the Postgres that confirmed it.
- A copy that starts before the original's next ratchet does not win: a Postgres that was started or promoted
  since the last ratchet watches the object for `WATCH_RATCHETS` ratchets before it writes. A restored dump
  (another system identifier or database) never writes without a take-over.
- A take-over raises the epoch. A late put of a lower epoch is replaced.

A store that ignores conditions leaves a window: a put may be sent before another database's put and arrive
after it. At the next ratchet the higher epoch decides or, in one epoch, the nonce that the object then has.
Until then, for two ratchets at most, both databases act as the owner.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from psycopg import AsyncConnection
from pydantic import ValidationError

from sequencer.cluster.ownership_rules import (
    WATCH_RATCHETS,
    Home,
    Known,
    Lost,
    OwnerObject,
    Proceed,
    Seen,
    WatchFirst,
    judge,
)
from sequencer.database.database import CommitOutcomeUnknown, Database, Row, SequencerUnavailable
from sequencer.database.named_sql import load_statements
from storage.segments.keys import identity_key, ownership_key
from storage.stores.object_store import ObjectChanged, ObjectNotFound, ObjectStore, is_there

SQL = load_statements("ownership")

DEFAULT_RATCHET_S = 60.0
_NONCES_KEPT = 64
_EARLIEST = 0.75
"""A ratchet is skipped if less than this share of the pause has passed since the last one."""
_ATTEMPTS = 5
CONFIRMED_RATCHETS = 2
"""For how many ratchets an ownership counts, the same as in `owns_bucket`."""


class OwnershipUnconfirmed(Exception):
    """This database may not change the bucket now. The message says why."""


class OwnershipLost(OwnershipUnconfirmed):
    """Another database owns the bucket, or this one is being recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """This database owns the bucket. `is_early`: that was confirmed a moment ago, so the store was not
    asked."""

    is_early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """Nothing was written: another database may own the bucket."""

    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipState:
    """What this database's row says. `confirmed_age_s` None: never confirmed."""

    epoch: int
    ratchets: int
    ratchet_s: float
    newest_nonce: UUID | None
    confirmed_age_s: float | None
    is_confirmed: bool
    is_watching: bool
    lost_because: str | None
    store_id: str | None

    def demand(self) -> None:
        """Raises OwnershipLost, or OwnershipUnconfirmed."""
        if self.lost_because is not None:
            raise OwnershipLost(self.lost_because)
        if not self.is_confirmed:
            age = "never" if self.confirmed_age_s is None else f"last {self.confirmed_age_s:.0f} s ago"
            why = (
                (
                    "Postgres was started since; the bucket is watched for "
                    f"{WATCH_RATCHETS * self.ratchet_s:g} s first"
                )
                if self.is_watching
                else "does an agent with the role jobs run, and can it write to the bucket?"
            )
            raise OwnershipUnconfirmed(f"the ownership of the bucket is not confirmed ({age}): {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """`before`: what the object said, if there was a readable one."""

    epoch: int
    before: OwnerObject | None
    before_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    owner: OwnerObject
    began: datetime


class Ownership:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def state(self) -> OwnershipState:
        [row] = await self._database.run(SQL["state"])
        return _state(row)

    async def demand(self) -> None:
        """Raises OwnershipUnconfirmed unless the bucket was confirmed to be this database's within two
        ratchets."""
        (await self.state()).demand()

    @asynccontextmanager
    async def demanded(self) -> AsyncIterator[None]:
        """As `demand`. If the block still runs when the confirmation ends, it is cancelled, and this raises
        OwnershipUnconfirmed. Otherwise a deletion that a slow store repeats, or a frozen process, would act
        too late.
        """
        asked_s = time.monotonic()
        state = await self.state()
        state.demand()
        assert state.confirmed_age_s is not None, "it is confirmed"
        left_s = CONFIRMED_RATCHETS * state.ratchet_s - state.confirmed_age_s
        ends = asyncio.timeout(left_s - (time.monotonic() - asked_s))
        try:
            async with ends:
                yield
        except TimeoutError as error:
            if not ends.expired():
                raise
            raise OwnershipUnconfirmed(
                "the ownership of the bucket was not confirmed again in time"
            ) from error

    async def check_object(self, store: ObjectStore, cluster: str) -> None:
        """Reads the object once and writes nothing into the bucket. An agent does this when it starts. Raises
        OwnershipLost, StoreUnavailable or SequencerUnavailable."""
        for _ in range(_ATTEMPTS):
            state = await self.state()
            if state.lost_because is not None:
                raise OwnershipLost(state.lost_because)
            seen = await _read_object(store, cluster)
            try:
                found = await self._decide(state, seen, cluster, state.ratchet_s, writes=False)
            except CommitOutcomeUnknown as unknown:
                raise SequencerUnavailable(str(unknown)) from unknown
            if isinstance(found, Lost):
                raise OwnershipLost(found.because)
            if found is not None:
                return

    async def ratchet(
        self, store: ObjectStore, cluster: str, *, ratchet_s: float = DEFAULT_RATCHET_S
    ) -> Confirmed | Watching | Lost:
        """Renews the ownership, if it is due. Any number of holders may call this at once.

        Raises OwnershipUnconfirmed if others wrote during every attempt, and StoreUnavailable,
        SequencerUnavailable or CommitOutcomeUnknown: then the next ratchet finds either nonce.
        """
        for _ in range(_ATTEMPTS):
            state = await self.state()
            if state.lost_because is not None:
                return Lost(because=state.lost_because)
            age_s = state.confirmed_age_s
            if state.is_confirmed and age_s is not None and age_s < _EARLIEST * ratchet_s:
                return Confirmed(is_early=True)
            seen = await _read_object(store, cluster)
            await _check_place(state, seen, store, cluster)
            found = await self._decide(state, seen, cluster, ratchet_s, writes=True)
            if isinstance(found, Watching | Lost):
                return found
            if isinstance(found, _Proposal) and await self._write(store, cluster, seen, found):
                rows = await self._database.run(
                    SQL["confirm"], epoch=found.owner.epoch, nonce=found.owner.nonce, began=found.began
                )
                if rows:
                    return Confirmed()
        raise OwnershipUnconfirmed(
            f"{ownership_key(cluster)} was written by others at the same time; tried again later"
        )

    async def take_over(
        self,
        store: ObjectStore,
        cluster: str,
        *,
        ratchet_s: float = DEFAULT_RATCHET_S,
        stopped_because: str | None = None,
    ) -> TakenOver:
        """Makes this database the owner, whatever the object says: the epoch is raised above both.

        `stopped_because`: agents of this database do not serve yet, for this reason, until `resume`. Raises
        as `ratchet`; repeating it is harmless.
        """
        first = seen = await _read_object(store, cluster)
        for _ in range(_ATTEMPTS):
            proposal = await self._propose_take_over(seen, ratchet_s)
            if await self._write(store, cluster, seen, proposal):
                rows = await self._database.run(
                    SQL["confirm_take_over"],
                    epoch=proposal.owner.epoch,
                    nonce=proposal.owner.nonce,
                    began=proposal.began,
                    stopped_because=stopped_because,
                )
                if rows:
                    before = first.owner
                    age_s = None if before is None else (proposal.began - before.written_at).total_seconds()
                    return TakenOver(epoch=proposal.owner.epoch, before=before, before_age_s=age_s)
            seen = await _read_object(store, cluster)
        raise OwnershipUnconfirmed(
            f"{ownership_key(cluster)} was written by others at the same time; try again"
        )

    async def stop(self, because: str) -> None:
        """Agents stop serving, merging and deleting until `resume` or a take-over, and show this sentence."""
        await self._database.run(SQL["lose"], because=because)

    async def resume(self) -> None:
        """Ends `stop`. The next ratchet finds out if this database owns the bucket."""
        await self._database.run(SQL["resume"])

    # --- the steps

    async def _decide(
        self, state: OwnershipState, seen: Seen, cluster: str, ratchet_s: float, *, writes: bool
    ) -> Proceed | _Proposal | Watching | Lost | None:
        """Judges the object under the row's lock. With `writes`, commits the next nonce as pending. None: the
        row has changed since `state`, and may have dropped the object's nonce."""
        async with self._database.transaction() as connection:
            row = await _one(connection, "lock")
            known, here = _known(row), _here(row)
            if row.lost_because is not None:
                return Lost(because=row.lost_because)
            if (known.nonces[-1] if known.nonces else None) != state.newest_nonce:
                return None
            verdict = judge(known, here, seen, ownership_key(cluster))
            if isinstance(verdict, Lost):
                await connection.execute(SQL["lose"], {"because": verdict.because})
                return verdict
            if not writes:
                return Proceed()
            if isinstance(verdict, WatchFirst):
                goes_on = row.watched == verdict.what and row.watched_since <= row.now
                since = row.watched_since if goes_on else row.now
                left_s = WATCH_RATCHETS * ratchet_s - (row.now - since).total_seconds()
                if left_s > 0:
                    watched = {"watched": verdict.what, "watched_since": since, "ratchet_s": ratchet_s}
                    await connection.execute(SQL["watch"], watched)
                    return Watching(left_s=left_s)
            return await _propose(connection, row, max(known.epoch, 1), known.nonces, ratchet_s)

    async def _propose_take_over(self, seen: Seen, ratchet_s: float) -> _Proposal:
        async with self._database.transaction() as connection:
            row = await _one(connection, "lock")
            epoch = max(row.epoch, 0 if seen.owner is None else seen.owner.epoch) + 1
            return await _propose(connection, row, epoch, (), ratchet_s)

    async def _write(self, store: ObjectStore, cluster: str, seen: Seen, proposal: _Proposal) -> bool:
        """Puts the proposed nonce over the object that was read. False if the object then says something
        else."""
        # Refused: another holder wrote, or an earlier attempt whose response was lost. Reading it back shows
        # which.
        with contextlib.suppress(ObjectChanged):
            await store.put_if(ownership_key(cluster), [proposal.owner.model_dump_json().encode()], seen.tag)
        owner = (await _read_object(store, cluster)).owner
        return owner is not None and owner.nonce == proposal.owner.nonce


async def read_owner(store: ObjectStore, cluster: str) -> OwnerObject | None:
    """Returns what the object in the bucket says; None if there is no readable one. Raises
    StoreUnavailable."""
    return (await _read_object(store, cluster)).owner


async def demand_ownership(connection: AsyncConnection[Row]) -> None:
    """As `Ownership.demand`, within a transaction."""
    _state(await _one(connection, "state")).demand()


async def is_owner(connection: AsyncConnection[Row]) -> bool:
    """True if `demand_ownership` would pass."""
    return _state(await _one(connection, "state")).is_confirmed


async def _propose(
    connection: AsyncConnection[Row], row: Row, epoch: int, nonces: Sequence[UUID], ratchet_s: float
) -> _Proposal:
    here, nonce = _here(row), uuid4()
    parameters = {
        "epoch": epoch,
        "nonces": [*nonces, nonce][-_NONCES_KEPT:],
        "ratchet_s": ratchet_s,
        "is_at_home": _known(row).home == here,
        "system_identifier": here.system_identifier,
        "database_oid": here.database_oid,
        "timeline": here.timeline,
        "postmaster_started_at": here.postmaster_started_at,
    }
    await connection.execute(SQL["propose"], parameters)
    owner = OwnerObject(
        epoch=epoch,
        nonce=nonce,
        cluster_id=row.cluster_id,
        written_at=row.now,
        writer=f"{socket.gethostname()}:{os.getpid()}",
    )
    return _Proposal(owner=owner, began=row.now)


async def _read_object(store: ObjectStore, cluster: str) -> Seen:
    try:
        found = await store.get_tagged(ownership_key(cluster))
    except ObjectNotFound:
        return Seen(tag=None, owner=None)
    try:
        return Seen(tag=found.tag, owner=OwnerObject.model_validate_json(found.data))
    except ValidationError:
        return Seen(tag=found.tag, owner=None)


async def _check_place(state: OwnershipState, seen: Seen, store: ObjectStore, cluster: str) -> None:
    """A vanished object is written again only if the rest of the bucket is there. Raises
    OwnershipUnconfirmed."""
    if seen.tag is not None or not state.ratchets or state.store_id is None:
        return
    identity = identity_key(cluster, state.store_id)
    if not await is_there(store, identity):
        raise OwnershipUnconfirmed(
            f"{ownership_key(cluster)} and {identity} are gone: is this the right bucket?"
        )


async def _one(connection: AsyncConnection[Row], statement: str) -> Row:
    return await (await connection.execute(SQL[statement])).fetchone()


def _state(row: Row) -> OwnershipState:
    return OwnershipState(
        epoch=row.epoch,
        ratchets=row.ratchets,
        ratchet_s=row.ratchet_s,
        newest_nonce=row.nonces[-1] if row.nonces else None,
        confirmed_age_s=row.confirmed_age_s,
        is_confirmed=row.is_confirmed,
        is_watching=row.is_watching,
        lost_because=row.lost_because,
        store_id=row.store_id,
    )


def _known(row: Row) -> Known:
    home = None
    if row.system_identifier is not None:
        home = Home(
            system_identifier=row.system_identifier,
            database_oid=row.database_oid,
            timeline=row.timeline,
            postmaster_started_at=row.postmaster_started_at,
        )
    return Known(epoch=row.epoch, nonces=tuple(row.nonces), home=home)


def _here(row: Row) -> Home:
    return Home(
        system_identifier=row.here_system_identifier,
        database_oid=row.here_database_oid,
        timeline=row.here_timeline,
        postmaster_started_at=row.here_postmaster_started_at,
    )
