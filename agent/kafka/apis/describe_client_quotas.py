"""Kafka API 48, DescribeClientQuotas, v0-v1 (KIP-546): the quotas of the entities that a filter selects, by
exact name, by default or by type. `strict`: only entities of exactly these types.

Refused as a whole, as in Kafka: a type that is empty or named twice, an address together with a user or a
client id, and a name that does not go with its kind of match (INVALID_REQUEST); another type
(UNSUPPORTED_VERSION).

A tenant's client sees the quotas of its tenant's users and client ids. Their defaults are those within the
tenant, and quotas of addresses are the operator's. Other clients of no tenant than operators see no quotas
of tenants.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.configs.administration import check_quota_access
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesSequencer
from agent.quotas.entities import CLIENT_ID, IP, USER, matches
from agent.slices import Slices
from sequencer.security.acl import Operation


class _Uses(UsesSequencer, Protocol):
    """The parts that this API uses."""


_EXACT: Final = 0
_DEFAULT: Final = 1
_SPECIFIED: Final = 2


async def handle(
    request: DescribeClientQuotasRequest, context: RequestContext[_Uses]
) -> DescribeClientQuotasResponse:
    try:
        check_quota_access(Operation.DESCRIBE_CONFIGS, context)
        exact, any_of = _filter(request, context)
        quotas = await context.parts.sequencer.client_quotas.all()
    except ADMINISTRATION_ERRORS as error:
        return DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE,
            error_code=administration_code(error),
            error_message=str(error),
            entries=None,
        )
    entries, slices = [], Slices()
    for entity, values in quotas.items():
        if is_reached(entity, context) and matches(entity, exact, any_of, strict=request.strict):
            entries.append(
                EntryData(
                    entity=tuple(
                        EntityData(entity_type=kind, entity_name=name)
                        for kind, name in sorted(dict(entity).items())
                    ),
                    values=tuple(
                        ValueData(key=key, value=f64(float(value))) for key, value in values.items()
                    ),
                )
            )
        await slices.look()
    return DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, entries=tuple(entries)
    )


def is_reached(entity: Iterable[tuple[str, str | None]], context: RequestContext[Any]) -> bool:
    """Returns whether the client may see and alter quotas of this entity: all of its names are of the
    client's tenant. Of the clients of no tenant, operators alone reach names of tenants.
    """
    reaches = context.connection.rights.reaches
    if context.tenant is None:
        return all(name is None or reaches(name) for _, name in entity)
    return all(kind != IP and name is not None and reaches(name) for kind, name in entity)


def _filter(
    request: DescribeClientQuotasRequest, context: RequestContext[Any]
) -> tuple[dict[str, str | None], frozenset[str]]:
    """Returns the exact names by type, and the types of which any name will do. Raises
    AdministrationRefused. The messages are Kafka's.
    """
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for part in request.components:
        kind = part.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in any_of:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise AdministrationRefused(
                ErrorCode.unsupported_version, f"Unsupported entity type {kind[:100]}"
            )
        if part.match_type == _EXACT:
            if part.match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = part.match
        elif part.match_type in (_DEFAULT, _SPECIFIED):
            name = "MATCH_TYPE_DEFAULT" if part.match_type == _DEFAULT else "MATCH_TYPE_SPECIFIED"
            if part.match is not None:
                raise _invalid(f"Request specified {name}, but also specified a match string.")
            if part.match_type == _DEFAULT:
                exact[kind] = context.prefix or None
            else:
                any_of.add(kind)
        else:
            raise _invalid(f"Unknown match type {part.match_type}")
    kinds = exact.keys() | any_of
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user "
            "or clientId filter component."
        )
    return exact, frozenset(any_of)


def _invalid(message: str) -> AdministrationRefused:
    return AdministrationRefused(ErrorCode.invalid_request, message)
