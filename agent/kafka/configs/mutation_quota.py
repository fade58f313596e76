"""How fast a client may create and delete topics (KIP-599, Kafka's controller mutation quota).

Each client has a bucket of tokens (`client_rates.py`), and every partition that it creates or deletes takes
one.

Promises:
- A client over its rate is refused with THROTTLING_QUOTA_EXCEEDED in versions that know it. In older ones its
  request waits for its turn, within its timeout. Answers carry the pause until the bucket is no longer
  overdrawn.
- A client is a host and a client id. Another client's rate does not change.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from agent.error_codes import AdministrationRefused
from agent.kafka.client_rates import TokenBuckets
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesMetrics, UsesMutations, UsesOverload, UsesQuotas
from agent.quotas.entities import QuotaKind
from agent.settings import AgentSettings
from sequencer.topics.topics import TopicExists, UnknownTopic


class UsesMutationQuota(UsesMutations, UsesOverload, UsesQuotas, UsesMetrics, Protocol):
    """The quota, and the counters of the pauses that it asks for."""


_LONGEST_CLIENT_ID: Final = 255


def mutation_quotas(settings: AgentSettings, clock: Callable[[], float]) -> TokenBuckets:
    return TokenBuckets(
        per_s=settings.topic_mutations_per_s,
        burst=settings.topic_mutation_burst,
        most_clients=settings.topic_mutation_clients,
        clock=clock,
    )


@asynccontextmanager
async def mutations_taken(
    mutations: int, context: RequestContext[UsesMutationQuota], *, refused_from: int
) -> AsyncIterator[None]:
    """Counts this many partitions for the client of this request, unless the block finds that nothing
    changes. `refused_from`: the first version of the API whose clients know the refusal. Raises
    AdministrationRefused.
    """
    while pause_s := _pause_s(context):
        if context.api_version >= refused_from:
            raise AdministrationRefused(
                ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded."
            )
        await asyncio.sleep(pause_s)
    count_mutations(mutations, context)
    try:
        yield
    except (AdministrationRefused, TopicExists, UnknownTopic):
        count_mutations(-mutations, context)
        raise


def count_mutations(mutations: int, context: RequestContext[UsesMutationQuota]) -> None:
    """Counts further partitions, after they were made."""
    context.parts.mutations.take(_client(context), mutations)
    user, client_id = _names(context)
    context.parts.quotas.charge(QuotaKind.MUTATION, user, client_id, mutations)


def mutation_throttle(context: RequestContext[UsesMutationQuota], api: str) -> i32Timedelta:
    """Returns the pause that the response asks this client for."""
    pause_s = _pause_s(context)
    context.parts.metrics.quota_throttle_seconds.labels(QuotaKind.MUTATION).inc(pause_s)
    if pause_s and context.tenant is not None:
        context.parts.metrics.tenants.note_throttle(context.tenant.name, pause_s)
    pause_ms = math.ceil(pause_s * 1000)
    context.parts.overload.count_pause(api, pause_ms)
    return i32Timedelta.parse(timedelta(milliseconds=pause_ms))


def _pause_s(context: RequestContext[UsesMutationQuota]) -> float:
    """Returns the longer pause: of the agent's own limit, or of a quota."""
    return max(
        context.parts.mutations.pause_s(_client(context)),
        context.parts.quotas.pause_s(QuotaKind.MUTATION, *_names(context)),
    )


def _names(context: RequestContext[UsesMutationQuota]) -> tuple[str, str]:
    return context.connection.principal.name, context.client_id or ""


def _client(context: RequestContext[UsesMutationQuota]) -> str:
    return f"{context.connection.host} {(context.client_id or '')[:_LONGEST_CLIENT_ID]}"
