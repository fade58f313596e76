"""What a group of the new protocol knows of topics (KIP-848: the coordinator assigns): what it was shown last
(`TopicsSeen`), and which topics its members' subscriptions name.

Promises:
- A topic that does not exist differs from a topic that was not looked up.
- A fingerprint changes with everything that a target depends on: the subscribed topics, their ids, their
  numbers of partitions, and what each regular expression matches.
- What it keeps of a subscription is dropped at the first fingerprint without that subscription.

Regular expressions (`SubscribedTopicRegex`) are Google's RE2, as in Kafka. A match takes time linear in the
topic's name, whatever the expression is, so no client can keep the event loop busy. An expression matches a
whole name. The length of an expression and the size of its compiled program are bounded.
"""

from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from hashlib import blake2b

import re2

from agent.groups.consumer.consumer_members import ConsumerMember
from agent.groups.events import TopicShape, TopicsSeen, TopicsWanted
from agent.tenants.local_topics import GroupTopics
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId

_COMPILED_KEPT = 256
_PATTERN_MEMORY_BYTES = 1 << 20
"""RE2 may use this for a pattern's program and the states that it caches while matching."""


class InvalidRegex(Exception):
    """The text says what is wrong, in Kafka's words."""


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """Returns the names that the expression matches as a whole. The expression must have been checked."""
    pattern = _compiled(regex)
    return frozenset(name for name in names if pattern.fullmatch(name) is not None)


def check_regex(regex: str, *, max_length: int, max_program_size: int) -> None:
    """Raises `InvalidRegex` if the expression does not compile or is too large."""
    if len(regex) > max_length:
        raise InvalidRegex(f"SubscribedTopicRegex is longer than {max_length} characters.")
    try:
        program_size = _compile(regex).programsize
    except re2.error as error:
        reason = error.args[0] if error.args else b"invalid"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegex(
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}."
        ) from error
    if program_size > max_program_size:
        raise InvalidRegex(f"SubscribedTopicRegex `{regex}` is too complex.")


@lru_cache(maxsize=_COMPILED_KEPT)
def _compiled(regex: str) -> "re2._Regexp":
    return _compile(regex)


def _compile(regex: str) -> "re2._Regexp":
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PATTERN_MEMORY_BYTES
    return re2.compile(regex, options)


async def look_at(directory: GroupTopics, wanted: Iterable[TopicsWanted]) -> dict[TopicsWanted, TopicsSeen]:
    """Returns what each of these wants to know of topics, with one lookup for all. Raises
    SequencerUnavailable.
    """
    asked = set(wanted)
    everything = any(one.everything for one in asked)
    names = {name for one in asked for name in one.names}
    if everything:
        found: Mapping[str, Topic] = {topic.name: topic for topic in await directory.all()}
    else:
        found = await directory.by_name(names) if names else {}
    shapes = {
        name: TopicShape(topic_id=topic.topic_id, partition_count=topic.partition_count)
        for name, topic in found.items()
    }
    return {one: TopicsSeen(topics=_part(shapes, one), asked=one) for one in asked}


def _part(shapes: Mapping[str, TopicShape], wanted: TopicsWanted) -> Mapping[str, TopicShape]:
    if wanted.everything:
        return shapes
    return {name: shapes[name] for name in wanted.names if name in shapes}


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
        self._hidden: frozenset[str] = frozenset()
        self._names: dict[TopicId, str] = {}
        self._matched: dict[str, frozenset[str]] = {}
        self._subscribed: dict[tuple[frozenset[str], str | None], frozenset[TopicId]] = {}
        """By subscription, because most members have the same."""

    def see(self, seen: TopicsSeen) -> None:
        if seen.topics.keys() != self._topics.keys() or seen.hidden != self._hidden:
            self._matched.clear()
        self._hidden = seen.hidden
        self._subscribed.clear()
        self._asked = seen.asked
        self._topics = seen.topics
        self._names = {shape.topic_id: name for name, shape in seen.topics.items()}

    def cover(self, wanted: TopicsWanted) -> bool:
        """True if everything in it was looked up."""
        if self._asked.everything or wanted.names is self._asked.names:
            return self._asked.everything or not wanted.everything
        return not wanted.everything and wanted.names <= self._asked.names

    @property
    def shapes(self) -> Mapping[str, TopicShape]:
        """The existing topics among those looked up."""
        return self._topics

    def id_of(self, name: str) -> TopicId | None:
        shape = self._topics.get(name)
        return None if shape is None else shape.topic_id

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """Returns the topics that it subscribes to, by name or by regular expression, whether they exist or
        not.
        """
        if member.regex is None:
            return member.topics
        return member.topics | self._matching(member.regex)

    def subscribed_ids(self, member: ConsumerMember) -> frozenset[TopicId]:
        """Returns the ids of those that exist."""
        found = self._subscribed.get((member.topics, member.regex))
        if found is None:
            names = self.subscribed(member) & self._topics.keys()
            found = frozenset(self._topics[name].topic_id for name in names)
            self._subscribed[member.topics, member.regex] = found
        return found

    def partition_counts(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, int]:
        return {topic_id: self._topics[self._names[topic_id]].partition_count for topic_id in topic_ids}

    def fingerprint(self, members: Iterable[ConsumerMember]) -> str:
        """Returns a digest of everything that these members' targets depend on, except the members."""
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

    def _forget_all_but(
        self, subscriptions: Set[tuple[frozenset[str], str | None]], regexes: Set[str]
    ) -> None:
        """Drops the other subscriptions: members may subscribe to ever new things."""
        self._subscribed = {key: found for key, found in self._subscribed.items() if key in subscriptions}
        self._matched = {regex: found for regex, found in self._matched.items() if regex in regexes}

    def _matching(self, regex: str) -> frozenset[str]:
        found = self._matched.get(regex)
        if found is None:
            found = self._matched[regex] = matching(regex, self._topics) - self._hidden
        return found
