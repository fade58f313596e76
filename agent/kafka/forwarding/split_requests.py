"""Which groups a request concerns, and how a request for groups of several coordinators is split. Pure.

Requests and responses are kio's, of any version. Promises:
- The parts together ask for exactly what the whole asked for.
- The joined response has the groups in the order of the request.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

_Place = TypeVar("_Place")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Many:
    """The fields that name groups in a request, and in its response."""

    asked: str
    answered: str


_OFFSET_FETCH: Final = 9
_JOIN_GROUP: Final = 11
_SYNC_GROUP: Final = 14
# OffsetCommit, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, TxnOffsetCommit, OffsetDelete,
# ConsumerGroupHeartbeat, StreamsGroupHeartbeat
_NAME_ONE: Final = frozenset((8, _JOIN_GROUP, 12, 13, _SYNC_GROUP, 28, 47, 68, 88))
_NAME_MANY: Final[Mapping[int, _Many]] = {
    _OFFSET_FETCH: _Many(asked="groups", answered="groups"),
    15: _Many(asked="groups", answered="groups"),  # DescribeGroups
    42: _Many(asked="groups_names", answered="results"),  # DeleteGroups
    69: _Many(asked="group_ids", answered="groups"),  # ConsumerGroupDescribe
    89: _Many(asked="group_ids", answered="groups"),  # StreamsGroupDescribe
}
_COORDINATED: Final = _NAME_ONE | _NAME_MANY.keys()
_WAIT_FOR_MEMBERS: Final = frozenset((_JOIN_GROUP, _SYNC_GROUP))


def is_coordinated(api_key: int) -> bool:
    """True if the API's requests belong to the coordinators of the groups that they name."""
    return api_key in _COORDINATED


def waits_for_members(api_key: int) -> bool:
    """True if a response may take as long as a rebalance."""
    return api_key in _WAIT_FOR_MEMBERS


def groups_of(api_key: int, request: Any) -> tuple[str, ...]:
    """Returns the groups that a request names. Empty if its API does not concern groups."""
    if api_key in _NAME_ONE:
        return (request.group_id,)
    many = _NAME_MANY.get(api_key)
    if many is None:
        return ()
    if many.asked not in type(request).__dataclass_fields__:
        return (request.group_id,)  # OffsetFetch before version 8
    return tuple(_name(entry) for entry in getattr(request, many.asked) or ())  # kio accepts a null


def split(api_key: int, request: Any, place_of: Callable[[str], _Place]) -> dict[_Place, Any]:
    """Splits a request that names many groups into one request for each coordinator."""
    many = _NAME_MANY[api_key]
    entries: dict[_Place, list[Any]] = {}
    for entry in getattr(request, many.asked):
        entries.setdefault(place_of(_name(entry)), []).append(entry)
    return {place: replace(request, **{many.asked: tuple(of_place)}) for place, of_place in entries.items()}


def join(api_key: int, request: Any, responses: Sequence[Any]) -> Any:
    """Joins the responses to the parts of `request` into one response. There is at least one."""
    many = _NAME_MANY[api_key]
    found: defaultdict[str, deque[Any]] = defaultdict(deque)
    for response in responses:
        for entry in getattr(response, many.answered):
            found[entry.group_id].append(entry)
    in_order = tuple(found[group].popleft() for group in groups_of(api_key, request) if found[group])
    return replace(responses[0], **{many.answered: in_order})


def _name(entry: Any) -> str:
    name: str = entry if isinstance(entry, str) else entry.group_id
    return name
