"""Which class a request's traffic is of: interactive, bulk or neither (docs/overload.md).

Pure. Promises:
- Bulk wins: if the user or any topic of a request is marked bulk, all of the request is bulk. Otherwise it is
  interactive if any of them is marked so.
- A connection stays bulk for `BULK_FOR_S` after its last request with such a mark. A client that mixes
  classes on one connection is bulk, because a connection's answers leave in the order of its requests.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sequencer.topics.known_configs import PRIORITY
from sequencer.topics.topics import Topic

BULK_FOR_S: Final = 1.0


class TrafficClass(StrEnum):
    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BULK = "bulk"


MARKS_OF_USERS: Final = {1.0: TrafficClass.INTERACTIVE, 2.0: TrafficClass.BULK}
"""What the values of the quota key `tidelog_priority` mean."""


def class_of(of_user: float | None, topics: Iterable[Topic | None]) -> TrafficClass:
    """`of_user`: the value of the user's `tidelog_priority`. An unknown topic has no mark."""
    marked = MARKS_OF_USERS.get(of_user) if of_user is not None else None
    if marked is TrafficClass.BULK:
        return marked
    found = marked or TrafficClass.NORMAL
    for topic in topics:
        mark = None if topic is None else topic.config.get(PRIORITY)
        if mark == TrafficClass.BULK:
            return TrafficClass.BULK
        if mark == TrafficClass.INTERACTIVE:
            found = TrafficClass.INTERACTIVE
    return found
