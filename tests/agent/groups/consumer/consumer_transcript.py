"""Transcripts of groups of the new protocol, and of groups that are converted: the verbs of `transcript.py`
and

    topics [<topic>=<partitions> ...]    the existing topics from now on, shown to the group if it wants any
    enter <client> [...]                 ConsumerGroupHeartbeat that joins: topics= regex= assignor= instance=
                                         rebalance= rack= member=
    beat <client> [...]                  one that stays; `owned=` says what it has, `full` repeats all fields
    quit <client>, pause <client>        one that leaves (-1), or for a while (-2)

Topics that the group wants to know are shown as soon as it wants them, as the coordinator does, except after
`blind` (until `sighted`). Partitions are written `orders:0-2,5+clicks:0`, none as `-`. Of classic clients,
`owned=` of a join are the partitions that a cooperative one still has, and `to-<client>=` of a sync are
partitions.
"""

import io
import struct
from uuid import UUID

from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription, TopicPartition
from kio.schema.types import TopicName
from kio.serial import entity_writer
from kio.static.primitive import i32

from agent.groups.consumer.consumer_protocol import read_assignment, write_assignment
from agent.groups.coordinator.running_group import GroupMachine
from agent.groups.events import (
    Answer,
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    Join,
    OfferedProtocol,
    Sync,
    SyncAnswer,
    TopicShape,
    TopicsSeen,
    TopicsWanted,
)
from agent.groups.group import Group
from storage.identifiers import Partition, TopicId
from tests.agent.groups.transcript import Client, Player, Step

_VERSION = struct.Struct(">h")


def topic_id(name: str) -> TopicId:
    """Topics have the same id in all transcripts; `orders/2` is orders, deleted and created again."""
    return TopicId(UUID(bytes=name.encode().ljust(16, b".")[:16]))


def partitions_from(text: str) -> dict[str, frozenset[Partition]]:
    found = {}
    for part in text.split("+"):
        topic, _, ranges = part.partition(":")
        if ranges:
            numbers: set[Partition] = set()
            for run in ranges.split(","):
                first, _, last = run.partition("-")
                numbers |= {Partition(number) for number in range(int(first), int(last or first) + 1)}
            found[topic] = frozenset(numbers)
    return found


def partitions_text(partitions: dict[str, frozenset[Partition]]) -> str:
    return (
        "+".join(f"{topic}:{_ranges(sorted(partitions[topic]))}" for topic in sorted(partitions)) or "nothing"
    )


def _ranges(numbers: list[Partition]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def subscription_with(topics: str, owned: str) -> bytes:
    """A classic consumer's subscription (v1), as a cooperative one sends it."""
    buffer = io.BytesIO()
    buffer.write(_VERSION.pack(1))
    entity_writer(ConsumerProtocolSubscription)(
        buffer,
        ConsumerProtocolSubscription(
            topics=tuple(topic for topic in topics.split("+") if topic),
            owned_partitions=tuple(
                TopicPartition(topic=TopicName(topic), partitions=tuple(map(i32, sorted(numbers))))
                for topic, numbers in partitions_from(owned).items()
            ),
        ),
    )
    return buffer.getvalue()


class ConsumerPlayer(Player):
    def make_group(self) -> GroupMachine:
        self.topics: dict[str, int] = getattr(self, "topics", {"orders": 6, "clicks": 4})
        self.sighted = getattr(self, "sighted", True)
        self.asked_for = TopicsWanted()
        return Group(self.settings, self.new_id, self.stored, self.now_ms)

    def play(self, step: Step) -> list[str]:
        return super().play(step)

    def write(self) -> list[str]:
        told = []
        while self.sighted and self.group.topics_wanted() != self.asked_for:
            told += self._show()
        return told + super().write()

    def _show(self) -> list[str]:
        wanted = self.asked_for = self.group.topics_wanted()
        shapes = {
            name: TopicShape(topic_id=topic_id(name), partition_count=count)
            for name, count in self.topics.items()
            if wanted.everything or name in wanted.names
        }
        return self.told(self.group.handle(TopicsSeen(topics=shapes, asked=wanted), self.now_ms))

    # --- topics

    def do_topics(self, step: Step) -> list[str]:
        self.topics = {name: int(count) for name, count in step.options.items()}
        return self._show() if self.sighted else []

    def do_blind(self, step: Step) -> list[str]:  # noqa: ARG002
        self.sighted = False
        return []

    def do_sighted(self, step: Step) -> list[str]:  # noqa: ARG002
        self.sighted = True
        return []

    # --- the new protocol

    def do_enter(self, step: Step) -> list[str]:
        client = self.client(step)
        said = client.said
        client.member_id = step.options.get("member", client.member_id or client.name)
        return self._beat(client, step, epoch=0, owned={}, everything="regex" not in said or "topics" in said)

    def do_beat(self, step: Step) -> list[str]:
        client = self.clients[step.words[0]]
        owned = step.options.get("owned")
        everything = "full" in step.words
        client.said |= {key: value for key, value in step.options.items() if key not in ("epoch", "member")}
        if everything:
            owned = owned or client.said.get("owned", "-")
        epoch = int(step.options.get("epoch", client.generation))
        return self._beat(client, step, epoch, None if owned is None else partitions_from(owned), everything)

    def do_quit(self, step: Step) -> list[str]:
        return self._leave(step, -1)

    def do_pause(self, step: Step) -> list[str]:
        return self._leave(step, -2)

    def _leave(self, step: Step, epoch: int) -> list[str]:
        client = self.clients[step.words[0]]
        return self._beat(client, step, epoch, None, everything=False)

    def _beat(
        self,
        client: Client,
        step: Step,
        epoch: int,
        owned: dict[str, frozenset[Partition]] | None,
        everything: bool,
    ) -> list[str]:
        said = client.said if epoch == 0 or everything else step.options
        topics = said.get("topics", "orders" if everything else None)
        return self.send(
            client,
            ConsumerHeartbeat(
                token=self.token(),
                member_id=step.options.get("member", client.member_id),
                member_epoch=epoch,
                instance_id=client.said.get("instance"),
                rack_id=said.get("rack"),
                client_id=client.name,
                client_host="/10.0.0.1",
                rebalance_timeout_ms=(
                    round(float(said.get("rebalance", "60")) * 1000) if epoch == 0 or everything else -1
                ),
                subscribed_topics=None
                if topics is None
                else tuple(topic for topic in topics.split("+") if topic and topic != "-"),
                subscribed_regex=said.get("regex"),
                assignor=said.get("assignor"),
                owned=None if owned is None else {topic_id(name): numbers for name, numbers in owned.items()},
            ),
        )

    def outcome(self, client: Client, answer: Answer) -> str:
        match answer:
            case ConsumerHeartbeatAnswer(fault=None):
                client.generation = answer.member_epoch
                client.member_id = answer.member_id or client.member_id
                has = "" if answer.assignment is None else f", has {self._named(answer.assignment)}"
                return f"{client.name} at {answer.member_epoch}{has}"
            case ConsumerHeartbeatAnswer():
                assert answer.fault is not None
                assert answer.message
                return f"{client.name} {answer.fault.name}"
            case SyncAnswer(fault=None):
                return (
                    f"{client.name} has "
                    f"{partitions_text(dict(read_assignment(answer.assignment).partitions))}"
                )
        return super().outcome(client, answer)

    def _named(self, assignment: Assignment) -> str:
        named = {topic.bytes.decode().rstrip("."): numbers for topic, numbers in assignment.items()}
        return partitions_text(named)

    # --- classic clients

    def do_join(self, step: Step) -> list[str]:
        """offers=range+cooperative-sticky topics=orders+clicks owned=..., and what other joins have"""
        client = self.client(step)
        said = client.said
        version = int(said.get("version", "9"))
        metadata = subscription_with(said.get("topics", "orders"), step.options.get("owned", ""))
        if "junk" in step.words:
            metadata = b"junk"
        return self.send(
            client,
            Join(
                token=self.token(),
                member_id=step.options.get("member", client.member_id),
                instance_id=said.get("instance"),
                client_id=client.name,
                client_host="/10.0.0.1",
                session_timeout_ms=round(float(said.get("session", "45")) * 1000),
                rebalance_timeout_ms=round(float(said.get("rebalance", "60")) * 1000),
                protocol_type=said.get("type", "consumer"),
                protocols=tuple(
                    OfferedProtocol(name=name, metadata=metadata)
                    for name in said.get("offers", "range").split("+")
                ),
                requires_known_member_id=version >= 4,
                can_skip_assignment=version >= 9,
            ),
        )

    def do_sync(self, step: Step) -> list[str]:
        client = self.clients[step.words[0]]
        like = subscription_with("", "")
        return self.send(
            client,
            Sync(
                token=self.token(),
                **self._identity(client, step),
                protocol_type=step.options.get("type"),
                protocol_name=step.options.get("protocol"),
                assignments={
                    self.clients[key.removeprefix("to-")].member_id: write_assignment(
                        partitions_from(value), like=like
                    )
                    for key, value in step.options.items()
                    if key.startswith("to-")
                },
            ),
        )

    def do_describe(self, step: Step) -> list[str]:  # noqa: ARG002
        described = self.group.describe()
        if described.kind == "classic":
            return [
                f"{described.state.value} {described.generation} classic {len(described.members)} members"
            ]
        return [
            (
                f"{described.state.value} {described.generation}/{described.assignment_epoch} "
                f"{described.protocol}"
            ),
            *(
                f"{m.member_id}{f'@{m.instance_id}' if m.instance_id else ''}"
                f"{' classic' if m.is_classic else ''} "
                f"at {m.member_epoch} has {self._named(m.assignment)}, is to have "
                f"{self._named(m.target_assignment)}"
                for m in described.members
            ),
        ]

    def do_fetch(self, step: Step) -> list[str]:
        """True if a member may read offsets. `-` is no member."""
        client = self.clients.get(step.words[0])
        member_id = None if client is None else client.member_id
        epoch = int(step.options.get("epoch", -1 if client is None else client.generation))
        fault = self.group.check_fetch(member_id, epoch)
        return ["may fetch" if fault is None else fault.name]


if __name__ == "__main__":
    import sys
    from pathlib import Path

    from tests.agent.groups.transcript import played

    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(played(path.read_text(), ConsumerPlayer()))
