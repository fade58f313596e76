"""Logs what was refused: who asked, from where, for what. At most some per second."""

import logging
from collections.abc import Callable
from typing import Final

from agent.security.principal import Principal
from sequencer.security.acl import Operation, ResourceType

log = logging.getLogger("tidelog")

_LONGEST_NAME: Final = 300


class Denials:
    def __init__(self, most_per_s: float, clock: Callable[[], float]) -> None:
        self._most_per_s = most_per_s
        self._burst = max(1.0, most_per_s)
        self._clock = clock
        self._tokens = self._burst
        self._at_s = clock()
        self._left_out = 0

    def note(
        self,
        principal: Principal,
        host: str,
        request: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._most_per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            self._left_out += 1
            return
        self._tokens -= 1.0
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
                "left_out_before": self._left_out,
            },
        )
        self._left_out = 0
