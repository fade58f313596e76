"""An agent's settings for tests."""

from dataclasses import replace
from typing import Any

from tidelog.process.environment import Environment
from tidelog.process.settings_fit import AllSettings


def all_settings(**parts: Any) -> AllSettings:
    """The defaults, except for the given parts: `all_settings(agent=AgentSettings(linger_ms=5))`."""
    return replace(AllSettings.read(Environment({})), **parts)
