"""When a streams group tries to create which of its missing internal topics (KIP-1071). Pure.

All missing topics are tried once in a *round*, some at each attempt. The attempts of a round follow at once.
Between them the group answers its members.

Promises:
- An attempt tries at most `group_streams_topics_created_at_once` topics.
- A pause follows a round: the heartbeat interval. It doubles, up to five minutes, while the same topics are
  refused for the same reasons.
- A topic that is missing since then is tried after the heartbeat interval at the latest.
"""

from collections.abc import Mapping

from agent.groups.settings import GroupSettings
from agent.groups.streams.topology import InternalTopic

_LONGEST_PAUSE_MS = 300_000


class TopicCreations:
    def __init__(self) -> None:
        self.refused: Mapping[str, str] = {}
        """Why topics could not be created when they were last tried."""
        self.due_ms: int | None = None
        """The time of the next attempt. None: there is none to wait for."""
        self._missing: tuple[InternalTopic, ...] = ()
        self._tried: set[str] = set()
        """The missing topics that were tried in this round."""
        self._refused_before: Mapping[str, str] = {}
        """At the end of the round before."""
        self._pause_ms = 0
        self._is_due = False

    def miss(self, missing: tuple[InternalTopic, ...], settings: GroupSettings, now_ms: int) -> None:
        """These topics are missing now."""
        names = {topic.name for topic in missing}
        self._missing = missing
        self._tried &= names
        self.refused = {name: why for name, why in self.refused.items() if name in names}
        if not missing:
            self.due_ms, self._is_due, self._refused_before = None, False, {}
        elif self.due_ms is None:
            self._is_due = True
        elif self._untried():
            self.due_ms = min(self.due_ms, now_ms + settings.group_streams_heartbeat_interval_ms)

    def begin(self) -> None:
        """The time of the next attempt has come."""
        self.due_ms, self._is_due = None, bool(self._missing)
        if not self._untried():
            self._tried.clear()

    def due(self, settings: GroupSettings) -> tuple[InternalTopic, ...]:
        """Returns the topics to create now."""
        if not self._is_due:
            return ()
        return self._untried()[: settings.group_streams_topics_created_at_once]

    def note(self, refused: Mapping[str, str], settings: GroupSettings, now_ms: int) -> None:
        """The topics that were `due` were created, except those that were `refused`."""
        tried = {topic.name for topic in self.due(settings)}
        self._is_due = False
        self._tried |= tried
        kept = {name: why for name, why in self.refused.items() if name not in tried}
        self.refused = kept | {name: why for name, why in refused.items() if name in tried}
        self.due_ms = now_ms if self._untried() else now_ms + self._next_pause_ms(settings)

    def _next_pause_ms(self, settings: GroupSettings) -> int:
        is_same = self.refused and self.refused == self._refused_before
        shortest_ms = settings.group_streams_heartbeat_interval_ms
        longest_ms = max(shortest_ms, _LONGEST_PAUSE_MS)
        self._pause_ms = min(self._pause_ms * 2, longest_ms) if is_same else shortest_ms
        self._refused_before = self.refused
        return self._pause_ms

    def _untried(self) -> tuple[InternalTopic, ...]:
        return tuple(topic for topic in self._missing if topic.name not in self._tried)
