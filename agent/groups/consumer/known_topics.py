"""What a group of the new protocol knows of topics: what it was shown last (`TopicsSeen`), and what its members'
subscriptions come to with that.

Promises to tell a topic that does not exist from one that was not asked for, and that a fingerprint changes with
everything that a target depends on: which topics are subscribed to, their ids, their numbers of partitions, and what
each regular expression matches. What it keeps of subscriptions goes with them when the next fingerprint is taken.
"""

from collections.abc import Iterable, Mapping, Set
from hashlib import blake2b

from agent.groups.consumer.consumer_members import ConsumerMember
from agent.groups.consumer.subscriptions import matching
from agent.groups.events import TopicShape, TopicsSeen, TopicsWanted
from storage.identifiers import TopicId


def wanted_by(members: Iterable[ConsumerMember]) -> TopicsWanted:
    names: set[str] = set()
    everything = False
    for member in members:
        names |= member.topics
        everything = everything or member.regex is not None
    return TopicsWanted(names=frozenset(names), everything=everything)


def both(one: TopicsWanted, other: TopicsWanted) -> TopicsWanted:
    return TopicsWanted(names=one.names | other.names, everything=one.everything or other.everything)


class KnownTopics:
    def __init__(self) -> None:
        self._asked = TopicsWanted()
        self._topics: Mapping[str, TopicShape] = {}
        self._names: dict[TopicId, str] = {}
        self._matched: dict[str, frozenset[str]] = {}
        self._subscribed: dict[tuple[frozenset[str], str | None], frozenset[TopicId]] = {}
        """By subscription: members mostly have the same."""

    def see(self, seen: TopicsSeen) -> None:
        if seen.topics.keys() != self._topics.keys():
            self._matched.clear()
        self._subscribed.clear()
        self._asked = seen.asked
        self._topics = seen.topics
        self._names = {shape.topic_id: name for name, shape in seen.topics.items()}

    def cover(self, wanted: TopicsWanted) -> bool:
        """Whether all of it was asked for."""
        if self._asked.everything or wanted.names is self._asked.names:
            return self._asked.everything or not wanted.everything
        return not wanted.everything and wanted.names <= self._asked.names

    def id_of(self, name: str) -> TopicId | None:
        shape = self._topics.get(name)
        return None if shape is None else shape.topic_id

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """The topics it subscribes to, by name or by regular expression, whether they exist or not."""
        if member.regex is None:
            return member.topics
        return member.topics | self._matching(member.regex)

    def subscribed_ids(self, member: ConsumerMember) -> frozenset[TopicId]:
        """Those of them that exist."""
        found = self._subscribed.get((member.topics, member.regex))
        if found is None:
            names = self.subscribed(member) & self._topics.keys()
            found = frozenset(self._topics[name].topic_id for name in names)
            self._subscribed[member.topics, member.regex] = found
        return found

    def partition_counts(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, int]:
        return {topic_id: self._topics[self._names[topic_id]].partition_count for topic_id in topic_ids}

    def fingerprint(self, members: Iterable[ConsumerMember]) -> str:
        """Of everything these members' target depends on but themselves."""
        subscriptions = {(member.topics, member.regex) for member in members}
        regexes = {regex for _, regex in subscriptions if regex is not None}
        self._forget_all_but(subscriptions, regexes)
        names = set[str]().union(*(topics for topics, _ in subscriptions))
        digest = blake2b(digest_size=16)
        for regex in sorted(regexes):
            matched = self._matching(regex)
            names |= matched
            digest.update(f"{regex}\0{' '.join(sorted(matched))}\n".encode())
        for name in sorted(names & self._topics.keys()):
            shape = self._topics[name]
            digest.update(f"{name} {shape.topic_id.hex} {shape.partition_count}\n".encode())
        return digest.hexdigest()

    def _forget_all_but(self, subscriptions: Set[tuple[frozenset[str], str | None]], regexes: Set[str]) -> None:
        """Members may subscribe to ever other things."""
        self._subscribed = {key: found for key, found in self._subscribed.items() if key in subscriptions}
        self._matched = {regex: found for regex, found in self._matched.items() if regex in regexes}

    def _matching(self, regex: str) -> frozenset[str]:
        found = self._matched.get(regex)
        if found is None:
            found = self._matched[regex] = matching(regex, self._topics)
        return found
