"""Counts what a request takes of its client's quotas, and mutes the connection (KIP-219: the answer names the
pause and leaves at once, and the connection is not read until the pause is over).
"""

import asyncio
import math
from typing import Protocol

from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesMetrics, UsesQuotas
from agent.quotas.entities import QuotaKind


class UsesQuotaPauses(UsesQuotas, UsesMetrics, Protocol):
    """The quotas, and the counters of their pauses."""


def quota_throttle_ms(kind: QuotaKind, amount: float, context: RequestContext[UsesQuotaPauses]) -> int:
    """Counts this amount and returns the pause that the answer names."""
    quotas = context.parts.quotas
    if not quotas.is_on:
        return 0
    user, client_id = context.connection.principal.name, context.client_id or ""
    of_kind_s = quotas.charge(kind, user, client_id, amount)
    pause_s = max(of_kind_s, quotas.pause_s(QuotaKind.REQUEST, user, client_id))
    if not pause_s:
        return 0
    named = kind if of_kind_s == pause_s else QuotaKind.REQUEST
    context.parts.metrics.quota_throttle_seconds.labels(named).inc(pause_s)
    connection = context.connection
    connection.muted_until_s = max(connection.muted_until_s, asyncio.get_running_loop().time() + pause_s)
    return math.ceil(pause_s * 1000)


def fetch_bytes_left(context: RequestContext[UsesQuotaPauses]) -> float | None:
    """Returns how much a fetch should bring at most, or 0.0 if its client has to wait. None: no bound."""
    quotas = context.parts.quotas
    if not quotas.is_on:
        return None
    user, client_id = context.connection.principal.name, context.client_id or ""
    if quotas.pause_s(QuotaKind.FETCH, user, client_id):
        return 0.0
    return quotas.rate(QuotaKind.FETCH, user, client_id)
