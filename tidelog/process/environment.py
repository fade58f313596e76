"""The environment of a command: the variables of its process, and the options that stand for such variables.

The command makes one value at its start (`Environment.of_process`), and completes it from its options and
from a running stack. It reads every settings model from this value, once, and hands it down.

Promises:
- Nothing else reads settings from the process's environment, and nothing writes them there.
- A wrong setting is a `UserError` that names its variable.

An option overrides its variable, and a variable the default. If nothing names a cluster, the addresses and
keys of a running stack override all three (`tidelog/find_cluster.py`).
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
    """`variables` by name. A setting's name may be in any case. Some hold secrets, so repr shows none."""

    variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_process(cls) -> Self:
        """The environment as it is now. Only a command's start calls this."""
        return cls(dict(os.environ))

    def with_options(self, options: Mapping[str, object]) -> Self:
        """Settings from the command line, by name. Each overrides its variable."""
        return self.with_variables({variable_of(name): text_of(value) for name, value in options.items()})

    def with_variables(self, variables: Mapping[str, str]) -> Self:
        """These override what is there."""
        kept = {name: value for name, value in self.variables.items() if name.upper() not in variables}
        return type(self)({**kept, **variables})

    def read(self, model: type[Model]) -> Model:
        """The settings of one part. Raises UserError for the first that is wrong or does not fit the
        others.
        """
        values = {name.upper(): value for name, value in self.variables.items()}
        given = {
            name: values[variable_of(name)] for name in model.model_fields if variable_of(name) in values
        }
        try:
            return model.model_validate(given)
        except ValidationError as invalid:
            raise UserError(_fault(invalid.errors()[0]), "The command's --help lists its settings.") from None


def _fault(error: Any) -> str:
    """The text of a fault, with the setting's variable. A fault of several settings names them already."""
    said = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    return f"{variable_of(str(error['loc'][0]))}: {said}." if error["loc"] else f"{said}."
