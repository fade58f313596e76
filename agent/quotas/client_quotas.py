"""Limits what clients do to their quotas (KIP-13, KIP-124, KIP-257, KIP-599, KIP-612), of which this agent
has a share.

Promises:
- A quota is one of the cluster. Agents report what their clients use of it, and divide it after that
  (`shares.py`). While Postgres is away, the last shares hold.
- A request is let through if its client owes nothing, and may overdraw. The client then waits until that is
  paid, so over time the quota holds for requests of every size.
- Without quotas, a request costs one look at `is_on`.
- The limits of a tenant as a whole hold in addition to the quotas of its users and client ids.
- At most `quota_clients` quotas in use are tracked. Past that, the tenant with most of them loses one.
- All agents together write at most `quota_reports_per_s` rows per second. An agent that is alone writes none.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.quotas.entities import CLIENT_KINDS, IP, QuotaKind, quota_of
from agent.quotas.settings import QuotaSettings
from agent.quotas.shares import Share, wanted_part
from sequencer.database.database import SequencerUnavailable
from sequencer.security.quotas import BEFORE_ALL_QUOTAS, Entity, QuotaPage, QuotaPlace, Quotas, QuotaUse
from sequencer.tenants.tenant_names import tenant_of

log = logging.getLogger("tidelog")

_BURST_S: Final = {QuotaKind.MUTATION: 11.0}
"""How much may be saved up, in seconds of the quota. As in Kafka, for mutations."""
_LONGEST_PAUSE_S: Final = 600.0
_LONGEST_PAUSES_S: Final = {QuotaKind.REQUEST: 1.0}
"""As in Kafka, where a pause for request time is no longer than the window that it is measured in."""
_KEPT_REPORTS: Final = 3
"""A row of use is valid for this many intervals of reports."""
_Shared = tuple[QuotaKind, str, str]
"""A kind, and who shares the quota: a user and a client id, an address, or a whole tenant."""
_WHOLE_TENANT: Final = "\0tenant"
"""In place of a user: no user has such a name."""


class _Agents(Protocol):
    """What is known of the agents of the cluster."""

    def node_id(self) -> int | None: ...
    def count(self) -> int: ...


@dataclass(slots=True, kw_only=True)
class _Use:
    """What the clients that share a quota use of it at this agent."""

    limit: float
    share: Share
    tokens: float
    at_s: float
    reported_s: float
    used: float = 0.0
    """Since the last report."""
    has_waited: bool = False


@dataclass(frozen=True, slots=True)
class _Quota:
    """A quota that applies to a client."""

    limit: float
    shared: _Shared
    tenant: str | None
    """Of the client."""
    is_of_whole: bool = False
    """True: all clients of the tenant share it."""


class ClientQuotas:
    """One per agent."""

    def __init__(
        self, quota_use: QuotaUse, agents: _Agents, settings: QuotaSettings, clock: Callable[[], float]
    ) -> None:
        self._quota_use = quota_use
        self._agents = agents
        self.settings = settings
        self._clock = clock
        self._quotas: dict[Entity, Quotas] = {}
        self._kinds: frozenset[QuotaKind] = frozenset()
        self.is_on = False
        """True if there is any quota of users or client ids."""
        self._place: QuotaPlace | None = BEFORE_ALL_QUOTAS
        self._newest = 0
        self._of_tenants: Mapping[str, Quotas] = {}
        """What each tenant as a whole may do."""
        self._wholes: dict[_Shared, _Use] = {}
        """The use of these. As many as tenants with such limits."""
        self._uses: dict[str | None, OrderedDict[_Shared, _Use]] = {}
        """All other use, by tenant. The first of each was silent longest."""
        self._tracked = 0
        """How much is in `_uses`."""
        self._found: dict[_Shared, tuple[_Quota, ...]] = {}
        """Which quotas apply to a user and client id."""
        self._reading = asyncio.Lock()

    # --- what a client may do

    def limits(self, kind: QuotaKind) -> bool:
        """True if anyone has such a quota."""
        return kind in self._kinds

    def charge(self, kind: QuotaKind, user: str, client_id: str, amount: float) -> float:
        """Counts what a client did, and returns how many seconds it has to wait. A connection's user is its
        address. A negative amount gives back.
        """
        pause_s = 0.0
        for use in self._used(kind, user, client_id):
            use.tokens -= amount
            use.used += amount
            pause_s = max(pause_s, self._pause_s(kind, use))
        return pause_s

    def pause_s(self, kind: QuotaKind, user: str, client_id: str) -> float:
        """Returns how many seconds the client has to wait for what it did before."""
        return max((self._pause_s(kind, use) for use in self._used(kind, user, client_id)), default=0.0)

    def rate(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """Returns what the client may do here per second. None: there is no bound."""
        return min((_per_s(kind, use) for use in self._used(kind, user, client_id)), default=None)

    def priority(self, user: str, client_id: str) -> float | None:
        """Returns the mark of the client's traffic. None: it has none."""
        if QuotaKind.PRIORITY not in self._kinds:
            return None
        return next((quota.limit for quota in self._applies(QuotaKind.PRIORITY, user, client_id)), None)

    def _pause_s(self, kind: QuotaKind, use: _Use) -> float:
        if use.tokens >= 0:
            return 0.0
        use.has_waited = True
        return min(_LONGEST_PAUSES_S.get(kind, _LONGEST_PAUSE_S), -use.tokens / _per_s(kind, use))

    def _used(self, kind: QuotaKind, user: str, client_id: str) -> list[_Use]:
        """Returns the use of the quotas that apply to a client: its own, and that of its whole tenant."""
        if kind not in self._kinds:
            return []
        return [self._use(quota) for quota in self._applies(kind, user, client_id)]

    def _use(self, quota: _Quota) -> _Use:
        now_s, kind, shared = self._clock(), quota.shared[0], quota.shared
        uses = self._wholes if quota.is_of_whole else self._uses.setdefault(quota.tenant, OrderedDict())
        use = uses.get(shared)
        if use is None:
            share = Share.of_newcomer(self._agents.count())
            use = uses[shared] = _Use(
                limit=quota.limit, share=share, tokens=0.0, at_s=now_s - 1.0, reported_s=now_s
            )
            if not quota.is_of_whole:
                self._tracked += 1
                while self._tracked > self.settings.quota_clients:
                    self._forget_one()
        if not quota.is_of_whole:
            self._uses[quota.tenant].move_to_end(shared)
        use.limit = quota.limit
        per_s = _per_s(kind, use)
        use.tokens = min(per_s * _BURST_S.get(kind, 1.0), use.tokens + (now_s - use.at_s) * per_s)
        use.at_s = now_s
        return use

    def _forget_one(self) -> None:
        """A tenant with many client ids makes its own forgotten, and not those of others."""
        tenant = max(self._uses, key=lambda one: len(self._uses[one]))
        self._uses[tenant].popitem(last=False)
        self._tracked -= 1
        if not self._uses[tenant]:
            del self._uses[tenant]

    def _applies(self, kind: QuotaKind, user: str, client_id: str) -> Sequence[_Quota]:
        asked = (kind, user, client_id)
        quotas = self._found.get(asked)
        if quotas is None:
            if len(self._found) >= self.settings.quota_clients:
                self._found.clear()
            quotas = self._found[asked] = tuple(self._applying(kind, user, client_id))
        return quotas

    def _applying(self, kind: QuotaKind, user: str, client_id: str) -> Iterator[_Quota]:
        if kind is QuotaKind.CONNECTION:
            of_ip = self._quotas.get(frozenset({(IP, user)}), self._quotas.get(frozenset({(IP, None)}), {}))
            if kind in of_ip:
                yield _Quota(of_ip[kind], (kind, user, ""), None)
            return
        tenant = tenant_of(user)
        found = quota_of(kind, user, client_id, self._quotas)
        if found is not None:
            yield _Quota(found[0], (kind, *found[1]), tenant)
        if tenant is not None and kind in (whole := self._of_tenants.get(tenant, {})):
            yield _Quota(whole[kind], (kind, _WHOLE_TENANT, tenant), tenant, is_of_whole=True)

    # --- quotas that change

    def forget_all(self) -> None:
        """Another Postgres became the primary: all quotas are read again. Until then, the old ones hold."""
        self._place = None

    async def refresh(self) -> None:
        """Returns once all changes that were made before this call hold here. Raises SequencerUnavailable."""
        async with self._reading:
            place = self._place
            begins = place is None or place == BEFORE_ALL_QUOTAS
            quotas = {} if begins else self._quotas
            newest = self._newest
            while True:
                page = await self._quota_use.page(place or BEFORE_ALL_QUOTAS)
                if not begins and _is_other(page, place, newest):
                    place, begins, quotas = None, True, {}
                    continue
                if page.changed or begins:
                    quotas = {**quotas, **dict(page.changed)}
                place = page.end
                if (begins and page.is_last) or not begins:
                    newest = page.newest
                if page.is_last:
                    break
            self._place, self._newest = place, newest
            if quotas is not self._quotas:
                self._take({entity: values for entity, values in quotas.items() if values})

    def _take(self, quotas: dict[Entity, Quotas]) -> None:
        if quotas != self._quotas:
            log.info("client quotas changed", extra={"entities": len(quotas)})
        self._quotas = quotas
        self._begin_again()

    def take_tenants(self, limits: Mapping[str, Quotas]) -> None:
        """Follows what each tenant as a whole may do."""
        self._of_tenants = {tenant: values for tenant, values in limits.items() if values}
        self._wholes = {
            shared: use
            for shared, use in self._wholes.items()
            if shared[0] in self._of_tenants.get(shared[2], {})
        }
        self._begin_again()

    def _begin_again(self) -> None:
        every = (*self._quotas.values(), *self._of_tenants.values())
        self._kinds = frozenset(QuotaKind(key) for values in every for key in values)
        self.is_on = any(kind in self._kinds for kind in CLIENT_KINDS)
        self._found.clear()

    # --- shares

    async def run(self) -> None:
        """Follows the quotas and shares, until cancelled."""
        while True:
            with contextlib.suppress(SequencerUnavailable):
                await self.refresh()
                await self.report()
            await asyncio.sleep(self.settings.quota_poll_s)

    async def report(self) -> None:
        """Reports what is used here and takes this agent's shares. Raises SequencerUnavailable."""
        agents, node_id = self._agents.count(), self._agents.node_id()
        now_s = self._clock()
        poll_s = self.settings.quota_poll_s
        tracked = {
            shared: use for uses in (self._wholes, *self._uses.values()) for shared, use in uses.items()
        }
        due = sorted(
            (shared for shared, use in tracked.items() if use.used or use.share.wanted),
            key=lambda shared: (shared not in self._wholes, tracked[shared].reported_s),
        )
        most = max(1, int(self.settings.quota_reports_per_s * poll_s / max(1, agents)))
        rounds = -(-len(due) // most)
        reported = {_key(shared): tracked[shared] for shared in due[:most]}
        for shared in due[:most]:
            self._note_wish(shared[0], tracked[shared], now_s)
        if agents <= 1 or node_id is None:
            for use in tracked.values():
                use.share.now = use.share.gained = 1.0
            return
        if not reported:
            return
        wanted = {key: use.share.wanted for key, use in reported.items()}
        others = await self._quota_use.report(node_id, wanted, _KEPT_REPORTS * rounds * poll_s)
        for key, use in reported.items():
            use.share.take(others.get(key, ()), agents)

    def _note_wish(self, kind: QuotaKind, use: _Use, now_s: float) -> None:
        full_per_s = use.limit * _unit(kind)
        passed_s = max(now_s - use.reported_s, 1e-3)
        debt = max(0.0, -use.tokens - (now_s - use.at_s) * _per_s(kind, use))
        use.share.wanted = wanted_part(
            use.used / passed_s / full_per_s,
            has_waited=use.has_waited,
            debt_rounds=debt / (full_per_s * self.settings.quota_poll_s),
        )
        use.used, use.has_waited, use.reported_s = 0.0, False, now_s


def _unit(kind: QuotaKind) -> float:
    return 0.01 if kind is QuotaKind.REQUEST else 1.0


def _per_s(kind: QuotaKind, use: _Use) -> float:
    return use.limit * _unit(kind) * use.share.now


def _key(shared: _Shared) -> bytes:
    return hashlib.blake2b("\0".join(shared).encode(errors="replace"), digest_size=16).digest()


def _is_other(page: QuotaPage, place: QuotaPlace | None, newest: int) -> bool:
    """True if another database answers, or it has forgotten removals that this reader has not seen."""
    return page.newest < max(newest, 0 if place is None else place.version) or page.forgotten > newest
