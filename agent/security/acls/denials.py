"""Logs what was refused: who asked, from where, for what. At most some per second."""

from collections.abc import Callable
from typing import Final

from agent.security.limited_lines import LimitedLines
from agent.security.principal import Principal
from sequencer.security.acl import Operation, ResourceType

_LONGEST_NAME: Final = 300


class Denials:
    def __init__(self, most_per_s: float, clock: Callable[[], float]) -> None:
        self._lines = LimitedLines("access denied", most_per_s, clock)

    def note(
        self,
        principal: Principal,
        host: str,
        request: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        self._lines.warn(
            {
                "principal": str(principal)[:_LONGEST_NAME],
                "host": host,
                "request": request,
                "operation": operation.name,
                "resource_type": resource_type.name,
                "resource": name[:_LONGEST_NAME],
                "outcome": "denied",
            }
        )
