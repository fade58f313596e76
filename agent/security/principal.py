"""Who a connection acts for, in Kafka's words: `User:alice`."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """As in Kafka, two principals are the same if type and name are."""

    name: str
    type: str = "User"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""The principal of a client that did not authenticate. The name is Kafka's."""
