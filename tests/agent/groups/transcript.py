"""Plays a transcript against a group's state machine and compares every answer and every write exactly.

A transcript is a text file: its claim in words, then one line per event,

    <seconds>  <verb> [<client> ...] [<option>=<value> ...]     -> <outcome>; <outcome>; ...

A line that begins with `->` continues the outcomes of the line above, and `#` begins a comment. Clients have
any names. A client repeats what it last sent (protocols, time-outs) and last got (member id, generation),
unless an option says otherwise. Outcomes are answers that went out, in order, and `wrote ...` if the group
asked for a write. A line without `->` has none. No timer may be left out: one with an effect needs a `tick`
line at its time. `python -m tests.agent.groups.transcript FILE` prints the file as it plays now.

The verbs here are those of the classic protocol and of any group. The player of another protocol adds its own
as methods `do_<verb>`, and its answers in `outcome`.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from agent.groups.classic.classic import ClassicGroup
from agent.groups.coordinator.running_group import GroupMachine
from agent.groups.events import (
    Answer,
    Answered,
    CommitFence,
    GroupEvent,
    GroupFault,
    GroupState,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    LeavingMember,
    OfferedProtocol,
    Sync,
    SyncAnswer,
    Token,
)
from agent.groups.settings import GroupSettings
from sequencer.groups.stored_groups import GroupChange, StoredGroup, StoredMember
from tests.agent.groups.subscriptions import subscription, subscription_text

OUTCOME_COLUMN = 60
_BELOW_COLUMN = 12
COLUMNS = 110
_STEP = re.compile(r"\s*(?P<at>\d+\.\d{3})\s+(?P<verb>[\w-]+)(?P<words>[^#]*?)(?:->(?P<outcomes>.*))?$")


@dataclass(slots=True, kw_only=True)
class Step:
    line: int
    at_ms: int
    verb: str
    words: tuple[str, ...]
    """Clients and other plain words."""
    options: dict[str, str]
    outcomes: list[str]
    text: str
    """The line up to its outcomes."""
    comment: str = ""


@dataclass(slots=True, kw_only=True)
class Client:
    """The last requests and answers of a client."""

    name: str
    member_id: str = ""
    generation: int = -1
    said: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> list[Step]:
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.split("#", 1)[0].strip()
        if stripped.startswith("->") and steps:
            steps[-1].outcomes += _outcomes(stripped[2:])
        elif matched := _STEP.match(line.split("#", 1)[0].rstrip()):
            words = matched["words"].split()
            steps.append(
                Step(
                    line=number,
                    at_ms=round(float(matched["at"]) * 1000),
                    verb=matched["verb"],
                    words=tuple(word for word in words if "=" not in word),
                    options=dict(word.split("=", 1) for word in words if "=" in word),
                    outcomes=_outcomes(matched["outcomes"] or ""),
                    text=line.split("#", 1)[0].split("->", 1)[0].rstrip(),
                    comment=line.partition("#")[2].strip(),
                )
            )
    return steps


def _outcomes(text: str) -> list[str]:
    return [" ".join(outcome.split()) for outcome in text.split(";") if outcome.strip()]


class Player:
    """Plays steps in virtual time, and keeps what is written as Postgres would."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(group_initial_rebalance_delay_ms=3_000)
        ids = count(1)
        self.new_id: Callable[[], str] = lambda: str(next(ids))
        self.stored: StoredGroup | None = None
        self.clients: dict[str, Client] = {}
        self.asked: dict[Token, str] = {}
        self._tokens = count(1)
        self.now_ms = 0
        self.group = self.make_group()

    def make_group(self) -> GroupMachine:
        return ClassicGroup(self.settings, self.new_id, self.stored, self.now_ms)

    # --- playing

    def play(self, step: Step) -> list[str]:
        early = self._pass_time(step)
        self.now_ms = step.at_ms
        outcomes: list[str] = getattr(self, "do_" + step.verb.replace("-", "_"))(step)
        return early + outcomes + self.write()

    def _pass_time(self, step: Step) -> list[str]:
        """Lets timers without a visible effect fire. All others must have their own line."""
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= step.at_ms:
            if step.verb == "tick" and due_ms == step.at_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            seen = self.told(self.group.tick(self.now_ms)) + self.write()
            if seen:
                return [f"({due_ms / 1000:.3f} tick: {'; '.join(seen)})"]
        return []

    def do_tick(self, step: Step) -> list[str]:
        due_ms = self.group.next_deadline_ms()
        if due_ms is None or due_ms > step.at_ms:
            return [f"(nothing is due, next {due_ms})"]
        return self.told(self.group.tick(self.now_ms))

    def write(self) -> list[str]:
        change = self.group.take_changes()
        if change is None:
            return []
        self.stored = written("g", self.stored, change)
        members = " ".join(
            sorted(
                f"{'-' if member is None else ''}{member_id}" for member_id, member in change.members.items()
            )
        )
        empty = " empty" if change.is_empty else ""
        return [f"wrote {change.state} {change.generation}{empty}{': ' if members else ''}{members}"]

    def send(self, client: Client, event: GroupEvent) -> list[str]:
        self.asked[event.token] = client.name  # type: ignore[union-attr]
        return self.told(self.group.handle(event, self.now_ms))

    def token(self) -> Token:
        return Token(next(self._tokens))

    def client(self, step: Step) -> Client:
        client = self.clients.setdefault(step.words[0], Client(name=step.words[0]))
        client.said |= step.options
        return client

    # --- what goes out

    def told(self, answers: list[Answered]) -> list[str]:
        outcomes = []
        for answered in answers:
            name = self.asked.pop(answered.token)  # a second answer to a request fails here
            outcomes.append(" ".join(self.outcome(self.clients[name], answered.answer).split()))
        return outcomes

    def outcome(self, client: Client, answer: Answer) -> str:
        match answer:
            case JoinAnswer():
                return self._join_outcome(client, answer)
            case SyncAnswer(fault=None):
                return f"{client.name} has {answer.assignment.decode() or 'nothing'} ({answer.protocol_name})"
            case SyncAnswer():
                return f"{client.name} sync {_name(answer.fault)}"
            case HeartbeatAnswer():
                return f"{client.name} {_name(answer.fault)}"
            case LeaveAnswer():
                left = (
                    f"{m.member_id or '@' + (m.instance_id or '')} {_name(fault)}"
                    for m, fault in answer.members
                )
                return (
                    f"{client.name} leave {'' if answer.fault is None else answer.fault.name} "
                    f"{', '.join(left)}"
                )
        raise AssertionError(f"no outcome is written for {answer}")

    def _join_outcome(self, client: Client, answer: JoinAnswer) -> str:
        client.member_id = answer.member_id
        if answer.fault is not None:
            if answer.fault is GroupFault.UNKNOWN_MEMBER:
                client.member_id = ""  # as clients do
            return f"{client.name} join {_name(answer.fault)} {answer.member_id}"
        client.generation = answer.generation
        role = "leads" if answer.leader == answer.member_id else f"follows {answer.leader},"
        skips = "as it was, " if answer.skip_assignment else ""
        members = " ".join(
            f"{m.member_id}{f'@{m.instance_id}' if m.instance_id else ''}({subscription_text(m.metadata)})"
            for m in answer.members
        )
        return (
            f"{client.name} joined {answer.generation} as {answer.member_id}, {role} "
            f"{skips}{answer.protocol_name}"
        ) + (f": {members}" if members else "")

    # --- verbs of the classic protocol

    def do_client(self, step: Step) -> list[str]:
        """What clients say from now on: the options of `join`"""
        for name in step.words:
            self.clients.setdefault(name, Client(name=name)).said |= step.options
        return []

    def do_stable(self, step: Step) -> list[str]:
        """These members (`name`, or `name@instance`) joined in the six seconds before and have what
        `to-<client>` says; the first leads
        """
        names = [word.partition("@")[0] for word in step.words]
        self.now_ms = step.at_ms - 2 * self.settings.group_initial_rebalance_delay_ms
        for word, name in zip(step.words, names, strict=True):
            instance = word.partition("@")[2]
            self.clients.setdefault(name, Client(name=name)).said |= (
                {"instance": instance} if instance else {}
            )
            join = Step(
                verb="join",
                words=(name,),
                options={"version": "3"},
                at_ms=self.now_ms,
                line=0,
                text="",
                outcomes=[],
            )
            self.do_join(join)
            self.clients[name].said["version"] = "9"
        while self.asked:
            self.now_ms = self.group.next_deadline_ms() or step.at_ms
            self.told(self.group.tick(self.now_ms))
        self.now_ms = step.at_ms
        for name in names[1:] + names[:1]:
            options = step.options if name == names[0] else {}
            self.do_sync(
                Step(verb="sync", words=(name,), options=options, at_ms=0, line=0, text="", outcomes=[])
            )
        assert self.group.state is GroupState.STABLE
        return []

    def do_join(self, step: Step) -> list[str]:
        """offers=range:topics,... instance= session= rebalance= (seconds) type= version= member= host="""
        client = self.client(step)
        said = client.said
        version = int(said.get("version", "9"))
        return self.send(
            client,
            Join(
                token=self.token(),
                member_id=step.options.get("member", client.member_id),
                instance_id=said.get("instance"),
                client_id=client.name,
                client_host=said.get("host", "/10.0.0.1"),
                session_timeout_ms=round(float(said.get("session", "45")) * 1000),
                rebalance_timeout_ms=round(float(said.get("rebalance", "60")) * 1000),
                protocol_type=said.get("type", "consumer"),
                protocols=tuple(
                    _offered(offer) for offer in said.get("offers", "range:orders").split(",") if offer
                ),
                requires_known_member_id=version >= 4,
                can_skip_assignment=version >= 9,
            ),
        )

    def do_sync(self, step: Step) -> list[str]:
        """to-<client>=<assignment> generation= member= instance= type= protocol="""
        client = self.clients[step.words[0]]
        given = {
            key.removeprefix("to-"): value for key, value in step.options.items() if key.startswith("to-")
        }
        return self.send(
            client,
            Sync(
                token=self.token(),
                **self._identity(client, step),
                protocol_type=step.options.get("type"),
                protocol_name=step.options.get("protocol"),
                assignments={self.clients[name].member_id: value.encode() for name, value in given.items()},
            ),
        )

    def do_heartbeat(self, step: Step) -> list[str]:
        """Of one client or several; generation= member= instance="""
        outcomes = []
        for name in step.words:
            client = self.clients[name]
            outcomes += self.send(client, Heartbeat(token=self.token(), **self._identity(client, step)))
        return outcomes

    def do_leave(self, step: Step) -> list[str]:
        """The first client asks; all named leave. By instance id alone: @instance"""
        leaving = tuple(
            LeavingMember(member_id="", instance_id=name[1:])
            if name.startswith("@")
            else LeavingMember(
                member_id=self.clients[name].member_id, instance_id=self.clients[name].said.get("instance")
            )
            for name in step.words
        )
        asks = self.clients.setdefault(step.words[0].lstrip("@"), Client(name=step.words[0].lstrip("@")))
        return self.send(asks, Leave(token=self.token(), members=leaving))

    def _identity(self, client: Client, step: Step) -> dict[str, Any]:
        return {
            "member_id": step.options.get("member", client.member_id),
            "instance_id": step.options.get("instance", client.said.get("instance")),
            "generation": int(step.options.get("generation", client.generation)),
        }

    # --- verbs of any group

    def do_commit(self, step: Step) -> list[str]:
        """Of a client, or of none (`-`)"""
        client = self.clients.get(step.words[0], Client(name="-"))
        identity = self._identity(client, step)
        checked = self.group.check_commit(**identity, now_ms=self.now_ms)
        match checked:
            case CommitFence(generation=None, member_id=None):
                return ["may commit to an empty group"]
            case CommitFence(member_id=None):
                return [f"may commit in generation {checked.generation}"]
            case CommitFence():
                return [f"may commit as {checked.member_id} at epoch {checked.member_epoch}"]
        return [checked.name]

    def do_forget(self, step: Step) -> list[str]:
        """Every waiting request of a client: it hung up"""
        for token, name in self.asked.items():
            if name == step.words[0]:
                self.group.forget(token)
        return []

    def do_take_over(self, step: Step) -> list[str]:  # noqa: ARG002
        """The coordinator died: what waited is lost, another begins with what was written"""
        self.asked.clear()
        self.group = self.make_group()
        return []

    def do_settings(self, step: Step) -> list[str]:
        """group_max_size= ...; the group begins again under them"""
        self.settings = GroupSettings.model_validate(
            self.settings.model_dump() | {name: int(value) for name, value in step.options.items()}
        )
        self.group = self.make_group()
        return []

    def do_delete(self, step: Step) -> list[str]:  # noqa: ARG002
        return [_name(self.group.check_delete())]

    def do_subscribed(self, step: Step) -> list[str]:
        return [f"{topic} {'yes' if self.group.subscribed(topic) else 'no'}" for topic in step.words]

    def do_describe(self, step: Step) -> list[str]:  # noqa: ARG002
        described = self.group.describe()
        members = [
            f"{m.member_id}{f'@{m.instance_id}' if m.instance_id else ''}"
            f" {subscription_text(m.metadata) or '-'} has {m.assignment_bytes.decode() or 'nothing'}"
            for m in described.members
        ]
        words = (
            described.state.value,
            str(described.generation),
            described.protocol_type,
            described.protocol,
        )
        return [" ".join(word for word in words if word), *members]


def _name(fault: GroupFault | None) -> str:
    return "ok" if fault is None else fault.name


def _offered(text: str) -> OfferedProtocol:
    name, _, subscribed = text.partition(":")
    return OfferedProtocol(name=name, metadata=subscription(subscribed))


def written(group_id: str, stored: StoredGroup | None, change: GroupChange) -> StoredGroup:
    """Returns what Postgres has after this change."""
    members: dict[str, StoredMember] = dict(stored.members) if stored else {}
    for member_id, member in change.members.items():
        if member is None:
            del members[member_id]
        else:
            members[member_id] = member
    return StoredGroup(
        group_id=group_id,
        kind=change.kind,
        generation=change.generation,
        state=change.state,
        protocol_type=change.protocol_type,
        document=change.document,
        members=members,
    )


def played(text: str, player: Player) -> str:
    """Returns the transcript with the actual outcomes."""
    steps = {step.line: step for step in parse(text)}
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        if number in steps:
            lines += _rendered(steps[number], player.play(steps[number]))
        elif not line.lstrip().startswith("->"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _rendered(step: Step, outcomes: list[str]) -> list[str]:
    """One line per outcome, at OUTCOME_COLUMN. If that is too wide, the outcomes are below the event."""
    comment = f"  # {step.comment}" if step.comment else ""
    first, *others = [f"-> {outcome}" for outcome in outcomes] or [""]
    lines = [f"{step.text.ljust(OUTCOME_COLUMN - 1)} {first}" if first else step.text]
    if comment:
        lines[0] = lines[0].ljust(OUTCOME_COLUMN) + comment
    lines += [" " * OUTCOME_COLUMN + other for other in others]
    if max(map(len, lines)) <= COLUMNS:
        return lines
    return [step.text + comment, *(" " * _BELOW_COLUMN + f"-> {outcome}" for outcome in outcomes)]


def assert_plays(path: Path, make_player: Callable[[], Player] = Player) -> None:
    """Fails with the line that differs, the expected outcome and the actual one."""
    player = make_player()
    steps = parse(path.read_text())
    assert steps, f"{path.name} has no events"
    for step in steps:
        happened = player.play(step)
        assert happened == step.outcomes, f"{path.name}:{step.line} {step.text.strip()}"


if __name__ == "__main__":
    sys.stdout.write(played(Path(sys.argv[1]).read_text(), Player()))
