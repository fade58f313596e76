"""The base of every part's settings: plain values with their bounds and defaults.

Promises that making one reads no environment: what is not given has its default. A command makes them from its
variables and options once, when it starts (`tidelog/process/environment.py`), and hands them down. They never change
afterwards.
"""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A model of settings. A string below a field says what it is for, in `--help` and docs/configuration.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)
