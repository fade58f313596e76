"""What each setting is for, as its source says below it: for `--help` and DescribeConfigs.

Read when it is asked for: pydantic would parse the sources of all settings at every start.
"""

import ast
import inspect
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from storage.settings import Settings


def described(model: type[Settings]) -> dict[str, str]:
    """The text of each setting that has one, its own class's or its base's, in one line."""
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
