"""Settings as command-line options: every field of a `BaseSettings` class is an option and the environment variable
`TIDELOG_<FIELD>`.

An option is its environment variable said on the command line: it is put into this process's environment, so whatever
part reads its settings there (the agent, the object store, the sequencer) sees it, and there is one order of
precedence: option, variable, default.
"""

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Collection
from functools import wraps
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

ENV_PREFIX = "TIDELOG_"


def variable_of(field: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + field.upper()


def with_settings(
    *models: type[BaseSettings], only: Collection[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option for every setting of `models` to a command, or for those named in `only`.

    A setting that two models share is one option.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command).parameters
        options: dict[str, inspect.Parameter] = {}
        for model in models:
            texts = described(model)
            for name, field in model.model_fields.items():
                if name not in own and (only is None or name in only):
                    options.setdefault(name, _option(name, field, texts.get(name, "")))

        @wraps(command)
        def run(**given: Any) -> Any:
            for name in options:
                value = given.pop(name)
                if value is not None:
                    os.environ[variable_of(name)] = _as_text(value)
            return command(**given)

        parameters = [*own.values(), *options.values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _option(name: str, field: FieldInfo, text: str) -> inspect.Parameter:
    kind = _option_type(field.annotation)
    flag = "--" + name.replace("_", "-")
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    secret = field.annotation is SecretStr or SecretStr in get_args(field.annotation)
    hidden = secret or field.default in (None, PydanticUndefined, "")
    default = "" if hidden else f" [default: {_as_text(field.default)}]"
    help_text = f"{text}{default} [{variable_of(name)}]".strip()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, typer.Option(declaration, help=help_text, show_default=False)],
    )


def _option_type(annotation: Any) -> type:
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return annotation if annotation in (bool, int, float) else str


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def described(model: type[BaseSettings]) -> dict[str, str]:
    """What each setting is for: its description, or the string below it in the source (its own or its base's)."""
    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if issubclass(part, BaseSettings) and part is not BaseSettings:
            found |= _strings_below_fields(part)
    for name, field in model.model_fields.items():
        if field.description:
            found[name] = field.description
    return {name: " ".join(text.split()) for name, text in found.items()}


def _strings_below_fields(model: type) -> dict[str, str]:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
