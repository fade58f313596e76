"""Translates a tenant's requests on their way in and the responses on their way out: clients of a tenant say
`orders` for what the cluster calls `acme~orders`.

kio types topics, groups and transactional ids, so their fields are found by type. `api_names.py` lists what
else a request or response of an API names.

Promises:
- A request cannot name what belongs to another tenant: each name in it gets the tenant's prefix.
- A name of another tenant in a response breaks the response, or leaves the list that it is in.
- An API that `api_names.py` does not list is not served to tenants.
- A long response is translated in slices, between which other clients are served.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.schema.types import GroupId, TopicName, TransactionalId

from agent.slices import Slices
from agent.tenants.tenant import ForeignName, Tenant

Translator: TypeAlias = Callable[[Any, Any, Tenant], Any]
"""Takes a field's value, the entity that has it, and the tenant. Null values never come here."""
Fields: TypeAlias = Mapping[str, Translator]

TYPES_OF_NAMES: Final = (TopicName, GroupId, TransactionalId)


def qualified(value: str, entity: Any, tenant: Tenant) -> str:  # noqa: ARG001 - as all translators
    return tenant.qualified(value)


def local(value: str, entity: Any, tenant: Tenant) -> str:  # noqa: ARG001
    """Raises ForeignName."""
    return tenant.local(value)


def shown(value: str, entity: Any, tenant: Tenant) -> str:  # noqa: ARG001
    return tenant.shown(value)


def kept(value: Any, entity: Any, tenant: Tenant) -> Any:  # noqa: ARG001
    return value


_TEXTS: Final[Fields] = MappingProxyType(
    dict.fromkeys(("error_message", "batch_index_error_message", "status_detail"), shown)
)
"""Sentences for people in responses of any API."""


def _nothing() -> Fields:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ApiNames:
    """What the requests and responses of one API name, by field, in addition to the fields that kio types."""

    request: Fields = field(default_factory=_nothing)
    response: Fields = field(default_factory=_nothing)
    leaves_out: bool = False
    """True: a list in a response leaves out what is not the tenant's. It may be of the whole cluster."""
    writes_itself: bool = False
    """True: the handler makes the response's bytes, with the names that the tenant sees."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One field to translate: by `translate`, or as an entity by `steps`. `is_many`: each of its entries."""

    name: str
    is_many: bool
    translate: Translator | None
    steps: tuple["_Step", ...]


def inward(api_key: int, version: int, names: ApiNames, request: Any, tenant: Tenant) -> Any:
    """Returns the request with the names that the cluster knows."""
    return _translated(request, _steps_of_request(api_key, version, names), tenant)


async def outward(api_key: int, version: int, names: ApiNames, response: Any, tenant: Tenant) -> Any:
    """Returns the response with the names that the tenant's clients know. Raises ForeignName."""
    steps = _steps_of_response(api_key, version, names)
    return await _translated_in_slices(response, steps, tenant, Slices(), leaves_out=names.leaves_out)


@cache
def _steps_of_request(api_key: int, version: int, names: ApiNames) -> tuple[_Step, ...]:
    return _steps(load_request_schema(api_key, version), names.request, qualified)


@cache
def _steps_of_response(api_key: int, version: int, names: ApiNames) -> tuple[_Step, ...]:
    return _steps(load_response_schema(api_key, version), {**_TEXTS, **names.response}, local)


def _steps(schema: Any, by_field: Fields, of_names: Translator) -> tuple[_Step, ...]:
    found = []
    hints = get_type_hints(schema)
    for one_field in fields(schema):
        name = one_field.name
        hint = hints[name]
        leaves = tuple(leaves_of(hint))
        is_many = any(get_origin(one) is tuple for one in (hint, *get_args(hint)))
        entity = next((one for one in leaves if is_dataclass(one)), None)
        if entity is not None:
            steps = _steps(entity, by_field, of_names)
            if steps:
                found.append(_Step(name, is_many, None, steps))
        elif (translate := by_field.get(name)) is not None:
            if translate is not kept:
                found.append(_Step(name, is_many, translate, ()))
        elif any(one in TYPES_OF_NAMES for one in leaves):
            found.append(_Step(name, is_many, of_names, ()))
    return tuple(found)


def leaves_of(hint: Any) -> Any:
    """Yields the types that a field's type is made of."""
    parts = get_args(hint)
    if not parts:
        yield hint
    for part in parts:
        yield from leaves_of(part)


def _translated(entity: Any, steps: tuple[_Step, ...], tenant: Tenant) -> Any:
    changes = {}
    for step in steps:
        value = getattr(entity, step.name)
        if value is None:
            continue
        if step.translate is None:
            changes[step.name] = (
                tuple(_translated(one, step.steps, tenant) for one in value)
                if step.is_many
                else _translated(value, step.steps, tenant)
            )
        elif step.is_many:
            changes[step.name] = tuple(step.translate(one, entity, tenant) for one in value)
        else:
            changes[step.name] = step.translate(value, entity, tenant)
    return replace(entity, **changes) if changes else entity


async def _translated_in_slices(
    entity: Any, steps: tuple[_Step, ...], tenant: Tenant, slices: Slices, *, leaves_out: bool
) -> Any:
    changes: dict[str, Any] = {}
    for step in steps:
        value = getattr(entity, step.name)
        if value is None:
            continue
        if not step.is_many:
            changes[step.name] = (
                step.translate(value, entity, tenant)
                if step.translate is not None
                else await _translated_in_slices(value, step.steps, tenant, slices, leaves_out=leaves_out)
            )
            continue
        entries = []
        for one in value:
            try:
                entries.append(
                    step.translate(one, entity, tenant)
                    if step.translate is not None
                    else await _translated_in_slices(one, step.steps, tenant, slices, leaves_out=leaves_out)
                )
            except ForeignName:
                if not leaves_out:
                    raise
            await slices.look()
        changes[step.name] = tuple(entries)
    return replace(entity, **changes) if changes else entity
