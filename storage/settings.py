"""The base of every part's settings: plain values with their bounds and defaults.

Promise: making one reads no environment, and a value that is not given has its default. A command makes them
once, at its start, from its variables and options (`tidelog/process/environment.py`), and passes them down.
They never change.

`described` reads the text of each setting, for `--help` and DescribeConfigs. It reads sources on demand,
because pydantic would otherwise parse the sources of all settings at every start.
"""

import ast
import inspect
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A model of settings. A string below a field says what it is for, in `--help` and
    docs/configuration.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


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
