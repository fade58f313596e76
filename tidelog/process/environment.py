"""What a command was given: the variables of its process, and the options that stand for such variables.

One value is made when the command starts (`Environment.of_process`), and completed from the command's options and from
a running stack. Every settings model is read from it, once, and handed down. Promises that nothing else reads settings
from the process's environment, that nothing writes them there, and that a setting which is wrong is a `UserError` that
names its variable.

An option wins over its variable, and a variable over the default. Where nothing names a cluster, a running stack's
addresses and keys win over all three (`tidelog/find_cluster.py`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from storage.settings import Settings
from tidelog.errors import UserError
from tidelog.process.settings import text_of, variable_of

Model = TypeVar("Model", bound=Settings)


@dataclass(frozen=True, slots=True)
class Environment:
    """`variables` by name, which for a setting may be in any case. Some hold secrets, so none is shown."""

    variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_process(cls) -> Self:
        """As it is now. For a command's start alone."""
        return cls(dict(os.environ))

    def with_options(self, options: Mapping[str, object]) -> Self:
        """Settings said on the command line, by name. Each stands for its variable and wins over it."""
        return self.with_variables({variable_of(name): text_of(value) for name, value in options.items()})

    def with_variables(self, variables: Mapping[str, str]) -> Self:
        """These win over what is there."""
        kept = {name: value for name, value in self.variables.items() if name.upper() not in variables}
        return type(self)({**kept, **variables})

    def read(self, model: type[Model]) -> Model:
        """The settings of one part. Raises UserError for the first that is wrong or does not fit the others."""
        values = {name.upper(): value for name, value in self.variables.items()}
        given = {name: values[variable_of(name)] for name in model.model_fields if variable_of(name) in values}
        try:
            return model.model_validate(given)
        except ValidationError as invalid:
            raise UserError(_fault(invalid.errors()[0]), "The command's --help lists its settings.") from None


def _fault(error: Any) -> str:
    """A fault of one setting by its variable; what several must be together names their variables already."""
    said = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    return f"{variable_of(str(error['loc'][0]))}: {said}." if error["loc"] else f"{said}."
