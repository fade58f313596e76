"""Completes requests of older versions: a field that a version lacks has its default.

A handler names the type of its requests. It is kio's class of the newest version. If no version has all
fields that the handler reads, it is a Protocol in which the fields that some versions lack have defaults.

kio reads a request into the class of its version. That class gets the defaults as attributes, once, so a
request costs nothing more.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints


@cache
def complete(schema: Any, wanted: Any) -> None:
    """Gives `schema`, kio's class of one version, the fields of `wanted` that it lacks. Raises LookupError if
    one has no default.
    """
    asked = wanted if isinstance(wanted, type) else _entity(wanted)
    if asked is None:
        raise LookupError(f"{wanted} is not a type of a request")
    own = {field.name for field in fields(schema)}
    own_types, defaults = get_type_hints(schema), _defaults(asked)
    for name, wanted_type in get_type_hints(asked).items():
        if name.startswith("__"):
            continue
        if name in own:
            entity, wanted_entity = _entity(own_types[name]), _entity(wanted_type)
            if entity is not None and wanted_entity is not None:
                complete(entity, wanted_entity)
        elif name in defaults:
            setattr(schema, name, defaults[name])
        else:
            raise LookupError(f"{schema.__module__}.{schema.__name__} has no {name}, and it has no default")


def _defaults(wanted: type) -> Mapping[str, Any]:
    """Returns the fields of an entity that have a default."""
    types = get_type_hints(wanted)
    if not is_dataclass(wanted):
        return {name: getattr(wanted, name) for name in types if hasattr(wanted, name)}
    found = {field.name: _default(field, types[field.name]) for field in fields(wanted)}
    return {name: default for name, default in found.items() if default is not MISSING}


def _default(field: "Field[Any]", of_type: Any) -> Any:
    """Returns the default of a field. As in Kafka's schemas, a field without one has null, empty or zero."""
    if field.default is not MISSING:
        return field.default
    if NoneType in get_args(of_type):
        return None
    if get_origin(of_type) is tuple:
        return ()
    zeros = (zero for zero in (False, 0, "") if isinstance(of_type, type) and issubclass(of_type, type(zero)))
    return next(zeros, MISSING)


def _entity(of_type: Any) -> type | None:
    """Returns the class of a request, or of its entries, that a field's type names, if it names one."""
    if isinstance(of_type, type) and (is_dataclass(of_type) or getattr(of_type, "_is_protocol", False)):
        return of_type
    return next((found for part in get_args(of_type) if (found := _entity(part)) is not None), None)
