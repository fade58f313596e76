"""The base of every part's settings: plain values with their bounds and defaults.

Promise: making one reads no environment, and a value that is not given has its default. A command makes them
once, at its start, from its variables and options (`tidelog/process/environment.py`), and passes them down.
They never change.

`described` reads the text of each setting, for `--help` and DescribeConfigs. It reads sources on demand,
because pydantic would otherwise parse the sources of all settings at every start.
"""

import ast
import inspect
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, field_validator

_ADDRESSES: Final = (
    "advertised_http_url",
    "encryption_kms_endpoint",
    "encryption_vault_address",
    "http_url",
    "oauth_jwks",
    "schema_registry_url",
    "store_url",
)
"""Settings that logs and errors show. Logins have settings of their own."""
_LOGIN: Final = re.compile(r"(^|://|,)[^/?#,]*@")


class Settings(BaseModel):
    """A model of settings. A string below a field says what it is for, in `--help` and
    docs/configuration.md.
    """

    # pydantic's own errors would show what was given, which may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @field_validator(*_ADDRESSES, check_fields=False)
    @classmethod
    def _has_no_login(cls, value: str | None) -> str | None:
        if value is not None and _LOGIN.search(value):
            raise ValueError("an address names no user and no password: logs and errors show it")
        return value


def described(model: type[Settings]) -> dict[str, str]:
    """Returns the text of each setting that has one, in its own class or its base, in one line."""
    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if issubclass(part, Settings) and part is not Settings:
            found |= _strings_below_fields(part)
    return {name: " ".join(text.split()) for name, text in found.items()}


def _strings_below_fields(model: type) -> dict[str, str]:
    tree = next(one for one in _classes(inspect.getfile(model)) if one.name == model.__name__)
    return {
        field.target.id: text.value.value
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@lru_cache
def _classes(file: str) -> tuple[ast.ClassDef, ...]:
    return tuple(one for one in ast.walk(ast.parse(Path(file).read_text())) if isinstance(one, ast.ClassDef))
