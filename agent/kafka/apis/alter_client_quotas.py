"""Kafka API 49, AlterClientQuotas, v0-v1 (KIP-546): sets and removes quotas of users, client ids, their
defaults, and addresses. This agent applies them before it answers, others after `quota_poll_s`. The valid
entries of a request are applied together.

Refused as in Kafka (INVALID_REQUEST): an entity without a type or with an unknown one, an empty name, an
address that is none; a key that does not go with the entity, a value that is not above 0 or is a fraction of
a byte or connection; a key or an entity that is named twice. Also refused: names of more than 1,024
characters, names of hosts, and more entities than `max_client_quotas` (POLICY_VIOLATION).

A tenant's client sets quotas of its tenant's users and client ids, and their defaults within the tenant. Also
refused: addresses, more entities than the tenant's limit, and the last tenth of `max_client_quotas`, which is
for clients of no tenant.
"""

import contextlib
from collections.abc import Mapping
from typing import Protocol

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
from kio.schema.alter_client_quotas.v1.request import EntryData as Alteration
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse, EntityData, EntryData
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.apis.describe_client_quotas import is_reached
from agent.kafka.configs.administration import check_quota_access, named_twice
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesQuotas, UsesSequencer
from agent.quotas.entities import IP, InvalidQuota, check_entity, check_value, tenant_of_entity
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Operation
from sequencer.security.quotas import Entity, TooManyQuotas


class _Uses(UsesSequencer, UsesQuotas, Protocol):
    """The parts that this API uses."""


async def handle(
    request: AlterClientQuotasRequest, context: RequestContext[_Uses]
) -> AlterClientQuotasResponse:
    outcomes: list[Exception | None] = [None] * len(request.entries)
    try:
        check_quota_access(Operation.ALTER_CONFIGS, context)
        changes = _changes(request.entries, outcomes, context)
        if not request.validate_only:
            await _alter(changes, context)
    except ADMINISTRATION_ERRORS as error:
        outcomes = [outcome or error for outcome in outcomes]
    return AlterClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        entries=tuple(map(_result, request.entries, outcomes)),
    )


def _changes(
    entries: tuple[Alteration, ...], outcomes: list[Exception | None], context: RequestContext[_Uses]
) -> dict[Entity, Mapping[str, float | None]]:
    """Returns the valid changes, and notes why others are not."""
    changes: dict[Entity, Mapping[str, float | None]] = {}
    twice = named_twice(_entity(entry, context) for entry in entries)
    for place, entry in enumerate(entries):
        try:
            entity = _entity(entry, context)
            change = _change(entry, context)
            if entity in twice:
                raise InvalidQuota("Ignoring duplicate entity")
            changes[entity] = change
        except InvalidQuota as invalid:
            outcomes[place] = AdministrationRefused(ErrorCode.invalid_request, str(invalid))
        except AdministrationRefused as refused:
            outcomes[place] = refused
    return changes


def _entity(entry: Alteration, context: RequestContext[_Uses]) -> Entity:
    """A tenant's default has the name that is left of its prefix."""
    default = context.prefix or None
    return frozenset(
        (part.entity_type, default if part.entity_name is None else part.entity_name) for part in entry.entity
    )


def _change(entry: Alteration, context: RequestContext[_Uses]) -> dict[str, float | None]:
    """Raises InvalidQuota, AdministrationRefused."""
    repeated = named_twice(part.entity_type for part in entry.entity)
    if repeated:
        raise InvalidQuota(f"Invalid empty client quota entity, duplicate entity entry {min(repeated)[:100]}")
    if context.tenant is not None and any(part.entity_type == IP for part in entry.entity):
        raise InvalidQuota("Quotas of addresses are the operator's.")
    entity = dict(_entity(entry, context))
    keys = check_entity(entity)
    tenant_of_entity(entity)
    if not is_reached(entity.items(), context):
        raise AdministrationRefused(ErrorCode.cluster_authorization_failed, "The entity belongs to a tenant.")
    change: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in change:
            raise InvalidQuota(f"Duplicate quota key {op.key[:100]} not updating quota for this entity")
        if not op.remove:
            check_value(keys, op.key, op.value)
        change[op.key] = None if op.remove else float(op.value)
    # As in Kafka, the removal of a key that cannot be there changes nothing.
    return {key: value for key, value in change.items() if key in keys}


async def _alter(
    changes: Mapping[Entity, Mapping[str, float | None]], context: RequestContext[_Uses]
) -> None:
    quotas = context.parts.quotas
    most = quotas.settings.max_client_quotas
    try:
        await context.parts.sequencer.client_quotas.alter(
            changes, most if context.tenant is None else most * 9 // 10
        )
    except TooManyQuotas as many:
        raise AdministrationRefused(ErrorCode.policy_violation, str(many)) from None
    with contextlib.suppress(SequencerUnavailable):  # the next poll tries again
        await quotas.refresh()


def _result(entry: Alteration, outcome: Exception | None) -> EntryData:
    return EntryData(
        error_code=ErrorCode.none if outcome is None else administration_code(outcome),
        error_message=None if outcome is None else str(outcome),
        entity=tuple(
            EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
        ),
    )
