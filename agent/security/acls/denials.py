"""Logs what was refused: who asked, from where, for what. At most some per second."""

import logging
from collections.abc import Callable
from typing import Final

from agent.security.line_limit import LineLimit
from agent.security.principal import Principal
from sequencer.security.acl import Operation, ResourceType

log = logging.getLogger("tidelog")

_LONGEST_NAME: Final = 300


class Denials:
    def __init__(self, most_per_s: float, clock: Callable[[], float]) -> None:
        self._limit = LineLimit(most_per_s, clock)

    def note(
        self,
        principal: Principal,
        host: str,
        request: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        left_out = self._limit.take()
        if left_out is None:
            return
        log.warning(
            "access denied",
            extra={
                "principal": str(principal)[:_LONGEST_NAME],
                "host": host,
                "request": request,
                "operation": operation.name,
                "resource_type": resource_type.name,
                "resource": name[:_LONGEST_NAME],
                "outcome": "denied",
                "left_out_before": left_out,
            },
        )
