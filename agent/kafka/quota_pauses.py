"""Counts what a request takes of its client's quotas, and mutes the connection (KIP-219: the answer names the
pause and leaves at once, and the connection is not read until the pause is over).
"""

import asyncio
import math
from typing import Protocol

from agent.kafka.context import ConnectionState, RequestContext
from agent.kafka.uses import UsesMetrics, UsesQuotas
from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.entities import QuotaKind


class UsesQuotaPauses(UsesQuotas, UsesMetrics, Protocol):
    """The quotas, and the counters of their pauses."""


def charge_received(
    amount: float, connection: ConnectionState, client_id: str | None, parts: UsesQuotaPauses
) -> None:
    """Counts a Produce request when it arrives, so its connection is muted before it sends the next one."""
    if parts.quotas.is_on:
        _charge(QuotaKind.PRODUCE, amount, connection, client_id or "", parts)


def quota_throttle_ms(kind: QuotaKind, amount: float, context: RequestContext[UsesQuotaPauses]) -> int:
    """Counts this amount and returns the pause that the answer names."""
    if not context.parts.quotas.is_on:
        return 0
    return math.ceil(1000 * _charge(kind, amount, context.connection, context.client_id or "", context.parts))


def _charge(
    kind: QuotaKind, amount: float, connection: ConnectionState, client_id: str, parts: UsesQuotaPauses
) -> float:
    quotas, user = parts.quotas, connection.principal.name
    of_kind_s = quotas.charge(kind, user, client_id, amount)
    pause_s = max(of_kind_s, quotas.pause_s(QuotaKind.REQUEST, user, client_id))
    until_s = asyncio.get_running_loop().time() + pause_s
    if pause_s and until_s > connection.muted_until_s:
        named = kind if of_kind_s == pause_s else QuotaKind.REQUEST
        now_s = until_s - pause_s
        further_s = until_s - max(now_s, connection.muted_until_s)
        parts.metrics.quota_throttle_seconds.labels(named).inc(further_s)
        if connection.tenant_name is not None:
            parts.metrics.tenants.note_throttle(connection.tenant_name, further_s)
        connection.muted_until_s = until_s
        connection.muted_for = (named, user, client_id)
    return pause_s


def muted_s(connection: ConnectionState, quotas: ClientQuotas, now_s: float) -> float:
    """Returns how long the connection stays muted. It ends earlier than named if this agent's share grew."""
    left_s = connection.muted_until_s - now_s
    if left_s <= 0 or connection.muted_for is None:
        return 0.0
    return min(left_s, quotas.pause_s(*connection.muted_for))


def fetch_bytes_left(context: RequestContext[UsesQuotaPauses]) -> float | None:
    """Returns how much a fetch should bring at most, or 0.0 if its client has to wait. None: no bound."""
    quotas = context.parts.quotas
    if not quotas.is_on:
        return None
    user, client_id = context.connection.principal.name, context.client_id or ""
    if quotas.pause_s(QuotaKind.FETCH, user, client_id):
        return 0.0
    return quotas.rate(QuotaKind.FETCH, user, client_id)
