"""Settings as command-line options: every field of a `Settings` class is an option and the environment
variable `TIDELOG_<FIELD>`.

An option sets its environment variable for one command. The command gets both as one `Environment`, reads
the settings of each part from it, and hands them down.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
import typer.core
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from spark_source.http_login import LOGIN_SETTINGS
from storage.settings import Settings, described
from tidelog.process.environment import Environment
from tidelog.process.settings import text_of, variable_of


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help has a section per group of options, in the order of their first options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is not None:
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(shown)
        for title, options in groups.items():
            with formatter.section(title):
                formatter.write_dl(options)


def with_settings(
    *models: type[Settings],
    only: Collection[str] | None = None,
    groups: Mapping[type[Settings], Mapping[str, str]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option to a command for every setting of `models`, or for those named in `only`.

    The command's parameter `environment` gets the variables of the process, completed by the options.

    A setting that two models share is one option. A login to HTTP (LOGIN_SETTINGS) is none, because
    everybody on a machine can read the arguments of a process. `groups` has for each model the first setting
    of each group of options, and the group's title in the help of a `GroupedCommand`.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = dict(inspect.signature(command).parameters)
        del own["environment"]
        options: dict[str, inspect.Parameter] = {}
        for model in models:
            texts = described(model)
            for name, field, title in _titled(model, (groups or {}).get(model, {})):
                if name not in own and name not in LOGIN_SETTINGS and (only is None or name in only):
                    options.setdefault(name, _option(name, field, texts.get(name, ""), title))

        @wraps(command)
        def run(**given: Any) -> Any:
            said = {name: value for name in options if (value := given.pop(name)) is not None}
            return command(environment=Environment.of_process().with_options(said), **given)

        parameters = [*own.values(), *options.values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _titled(model: type[Settings], titles: Mapping[str, str]) -> Iterator[tuple[str, FieldInfo, str | None]]:
    """Each setting with the title of its group."""
    title: str | None = None
    for name, field in model.model_fields.items():
        title = titles.get(name, title)
        yield name, field, title


def _option(name: str, field: FieldInfo, text: str, title: str | None) -> inspect.Parameter:
    kind = _option_type(field.annotation)
    flag = "--" + name.replace("_", "-")
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    secret = field.annotation is SecretStr or SecretStr in get_args(field.annotation)
    hidden = secret or field.default in (None, PydanticUndefined, "")
    default = "" if hidden else f" [default: {text_of(field.default)}]"
    help_text = f"{text}{default} [{variable_of(name)}]".strip()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            kind | None, typer.Option(declaration, help=help_text, show_default=False, rich_help_panel=title)
        ],
    )


def _option_type(annotation: Any) -> type:
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return annotation if annotation in (bool, int, float) else str
