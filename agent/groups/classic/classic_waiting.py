"""Members that wait for an answer, and the requests that wait with them.

A member may go on waiting when its request is gone: one that joined and then lost its connection still takes part in
the rebalance, as in Kafka; only the answer is dropped.
"""

from collections.abc import Iterable

from agent.groups.events import Token


class Waiting:
    """At most one request per member, and one member per request."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token | None] = {}
        self._members: dict[Token, str] = {}

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def put(self, member_id: str, token: Token) -> Token | None:
        """The member waits with this request; returns an earlier one of its own, which must be answered now."""
        earlier = self.take(member_id)
        self._tokens[member_id] = token
        self._members[token] = member_id
        return earlier

    def take(self, member_id: str) -> Token | None:
        """The member waits no more; the request to answer, if there still is one."""
        token = self._tokens.pop(member_id, None)
        if token is not None:
            del self._members[token]
        return token

    def forget(self, token: Token) -> None:
        member_id = self._members.pop(token, None)
        if member_id is not None:
            self._tokens[member_id] = None

    def member_ids(self) -> Iterable[str]:
        return tuple(self._tokens)
