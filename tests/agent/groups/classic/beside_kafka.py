"""Plays the classic transcripts against Apache Kafka, in real time, and shows the differences.

`python -m tests.agent.groups.classic.beside_kafka [NAME]` needs Java and, once, the jars of Maven Central. It
takes a minute and a half. All transcripts play at once, each in its own group. It compares the answers to
JoinGroup, SyncGroup, Heartbeat and LeaveGroup, whatever their order within a step, and member ids by the
order in which they appear. It leaves out transcripts with verbs that a broker lacks (`take-over`, `forget`),
with their own settings, or that last too long. `ON_PURPOSE` names the intended differences. Any other
difference makes the exit status 1.
"""

import asyncio
import importlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i32Timedelta

from agent.error_codes import group_code
from agent.groups.events import (
    Answer,
    GroupEvent,
    GroupFault,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    JoinedMember,
    Leave,
    LeaveAnswer,
    LeavingMember,
    Sync,
    SyncAnswer,
)
from tests.agent.groups.transcript import Client, Player, Step, parse
from tests.support.apache_kafka import apache_kafka
from tests.support.kafka_wire import Connection, coordinator_of

TRANSCRIPTS = Path(__file__).parent / "transcripts"
LONGEST_S = 70
SETTLES_S = 10.0
"""Kafka's coordinator loads the partitions of its log."""
ANSWERS_WITHIN_S = 0.3
SLACK_S = 0.8
"""Time for answers and late timers, where the next step leaves it."""
NOT_ON_A_BROKER = {"take-over", "forget", "settings"}
NOT_COMPARED = {"describe", "commit", "subscribed", "delete"}
ON_PURPOSE = {
    "asking_twice": "Kafka never answers the earlier request",
    "leave_while_waiting": "Kafka never answers a member that is removed while it syncs",
    "static_member_with_other_topics": "Kafka leaves the rebalance to the client",
    "rebalance_timeout": "Kafka's choice of a leader falls as its hash tables lie",
    "vote": "Kafka's choice between equal votes falls as its hash tables lie",
    "commits": "commits are not played, and keep a member alive",
}
_FAULTS = {group_code(fault): fault for fault in GroupFault} | {ErrorCode.none: None}
_ID = re.compile(r"\b([a-z]+)-([0-9a-f]{8}-[0-9a-f-]{27}|\d+)\b")


def schema(api: str, version: int) -> Any:
    return importlib.import_module(f"kio.schema.{api}.v{version}.request")


def milliseconds(duration_ms: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=duration_ms))


def request_of(event: GroupEvent, group_id: str) -> Any:
    match event:
        case Join():
            newest = 9 if event.can_skip_assignment else 8
            version = newest if event.requires_known_member_id or event.instance_id is not None else 3
            join = schema("join_group", version)
            return join.JoinGroupRequest(
                group_id=group_id,
                member_id=event.member_id,
                session_timeout=milliseconds(event.session_timeout_ms),
                rebalance_timeout=milliseconds(event.rebalance_timeout_ms),
                protocol_type=event.protocol_type,
                protocols=tuple(
                    join.JoinGroupRequestProtocol(name=offered.name, metadata=offered.metadata)
                    for offered in event.protocols
                ),
                **({"group_instance_id": event.instance_id} if version > 3 else {}),
            )
        case Sync():
            names = {"protocol_type": event.protocol_type, "protocol_name": event.protocol_name}
            says = event.protocol_type is not None or event.protocol_name is not None
            sync = schema("sync_group", 5 if says else 4)
            return sync.SyncGroupRequest(
                group_id=group_id,
                member_id=event.member_id,
                group_instance_id=event.instance_id,
                generation_id=i32(event.generation),
                assignments=tuple(
                    sync.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in event.assignments.items()
                ),
                **({name: said or {"protocol_type": "consumer", "protocol_name": "range"}[name]
                    for name, said in names.items()} if says else {}),
            )  # fmt: skip
        case Heartbeat():
            return schema("heartbeat", 4).HeartbeatRequest(
                group_id=group_id,
                member_id=event.member_id,
                group_instance_id=event.instance_id,
                generation_id=i32(event.generation),
            )
        case Leave():
            leave = schema("leave_group", 5)
            return leave.LeaveGroupRequest(
                group_id=group_id,
                members=tuple(
                    leave.MemberIdentity(member_id=leaving.member_id, group_instance_id=leaving.instance_id)
                    for leaving in event.members
                ),
            )
    raise AssertionError(f"{event} is not of the classic protocol")


def answer_of(event: GroupEvent, response: Any, protocol: str | None) -> Answer:
    fault = _FAULTS[response.error_code]
    match event:
        case Join():
            return JoinAnswer(
                fault=fault,
                member_id=response.member_id,
                generation=response.generation_id,
                protocol_name=response.protocol_name,
                leader=response.leader,
                skip_assignment=getattr(response, "skip_assignment", False),
                members=tuple(
                    JoinedMember(
                        member_id=member.member_id,
                        instance_id=getattr(member, "group_instance_id", None),
                        metadata=member.metadata,
                    )
                    for member in response.members
                ),
            )
        case Sync():
            name = getattr(response, "protocol_name", None) or protocol
            return SyncAnswer(fault=fault, protocol_name=name, assignment=response.assignment)
        case Heartbeat():
            return HeartbeatAnswer(fault=fault)
    return LeaveAnswer(
        fault=fault,
        members=tuple(
            (
                LeavingMember(member_id=left.member_id, instance_id=left.group_instance_id),
                _FAULTS[left.error_code],
            )
            for left in response.members
        ),
    )


class KafkaPlayer(Player):
    """Sends what a `Player` would hand to a machine, each request on its own connection."""

    def __init__(self, host: str, port: int, group_id: str) -> None:
        super().__init__()
        self._host = host
        self._port = port
        self._group_id = group_id
        self._protocol: str | None = None
        self._asking: list[asyncio.Task[None]] = []
        self.happened: list[str] = []

    def send(self, client: Client, event: GroupEvent) -> list[str]:
        self._asking.append(asyncio.create_task(self._ask(client, event)))
        return []

    async def _ask(self, client: Client, event: GroupEvent) -> None:
        connection = await Connection.open(self._host, self._port, client_id=client.name)
        try:
            response = await connection.ask(request_of(event, self._group_id), timeout_s=2 * LONGEST_S)
        finally:
            connection.kill()
        answer = answer_of(event, response, self._protocol)
        if isinstance(answer, JoinAnswer) and answer.fault is None:
            self._protocol = answer.protocol_name
        self.happened.append(" ".join(self.outcome(client, answer).split()))

    async def run(self, steps: Sequence[Step]) -> list[list[str]]:
        """Returns what happened in each step."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time() - steps[0].at_ms / 1000
        seen = []
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            await asyncio.sleep(max(0.0, begun_s + step.at_ms / 1000 - loop.time()))
            if step.verb == "stable":
                await self._make_stable(step)
                begun_s = loop.time() - step.at_ms / 1000
            elif step.verb not in NOT_COMPARED | {"tick"}:
                getattr(self, "do_" + step.verb)(step)
            if step.verb != "client":
                free_s = LONGEST_S if following is None else begun_s + following.at_ms / 1000 - loop.time()
                least_s = SLACK_S if step.verb == "tick" and free_s < ANSWERS_WITHIN_S else ANSWERS_WITHIN_S
                await asyncio.sleep(max(least_s, min(SLACK_S, free_s)))
            seen.append(self.happened[:])
            self.happened.clear()
        for task in self._asking:
            task.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await task
        return seen

    async def _make_stable(self, step: Step) -> None:
        names = [word.partition("@")[0] for word in step.words]
        for word, name in zip(step.words, names, strict=True):
            instance = word.partition("@")[2]
            self.clients.setdefault(name, Client(name=name)).said |= (
                {"instance": instance} if instance else {}
            )
            self.do_join(an_inner_step("join", name, {"version": "3"}))
            self.clients[name].said["version"] = "9"
            await asyncio.sleep(ANSWERS_WITHIN_S)
        async with asyncio.timeout(LONGEST_S):
            await asyncio.gather(*self._asking)
        for name in names[1:] + names[:1]:
            self.do_sync(an_inner_step("sync", name, step.options if name == names[0] else {}))
            await asyncio.sleep(ANSWERS_WITHIN_S)
        self.happened.clear()


def an_inner_step(verb: str, name: str, options: dict[str, str]) -> Step:
    return Step(line=0, at_ms=0, verb=verb, words=(name,), options=options, outcomes=[], text="")


def comparable(happened: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leaves out writes and the order, and numbers ids by their first appearance."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        prefix = found[1]
        known = sum(1 for given in names.values() if given.startswith(prefix + "#"))
        return names.setdefault(found[0], f"{prefix}#{known + 1}")

    compared = []
    for outcomes in happened:
        told = [_ID.sub(name, outcome) for outcome in outcomes if not outcome.startswith("wrote ")]
        told = [
            re.sub(r"(?<= UNKNOWN_MEMBER) \S+$", "", outcome) if " join " in outcome else outcome
            for outcome in told
        ]
        heads = [outcome.partition(": ") for outcome in told]
        compared.append(
            sorted(f"{head}{colon}{' '.join(sorted(tail.split()))}" for head, colon, tail in heads)
        )
    return compared


async def differences(group_id: str, steps: Sequence[Step], host: str, port: int) -> list[str]:
    (await coordinator_of(host, port, group_id)).kill()
    await asyncio.sleep(SETTLES_S)
    seen = comparable(await KafkaPlayer(host, port, group_id).run(steps))
    ours = comparable([[] if step.verb in NOT_COMPARED else step.outcomes for step in steps])
    return [
        f"{step.text.strip()}\n    here   {said}\n    Kafka  {told}"
        for step, said, told in zip(steps, ours, seen, strict=True)
        if said != told
    ]


def playable(steps: Sequence[Step]) -> bool:
    return steps[-1].at_ms - steps[0].at_ms < LONGEST_S * 1000 and not NOT_ON_A_BROKER & {
        step.verb for step in steps
    }


async def main(host: str, port: int, transcripts: Mapping[str, Sequence[Step]]) -> int:
    found = await asyncio.gather(
        *(differences(name, steps, host, port) for name, steps in transcripts.items())
    )
    for name, differs in zip(transcripts, found, strict=True):
        print(
            f"{'other' if differs else 'same '} {name}{': ' + ON_PURPOSE[name] if name in ON_PURPOSE else ''}"
        )
        if name not in ON_PURPOSE:
            print("".join(f"  {line}\n" for line in differs), end="")
    print(f"{found.count([])} of {len(found)} transcripts play the same on Apache Kafka")
    return int(
        any(differs for name, differs in zip(transcripts, found, strict=True) if name not in ON_PURPOSE)
    )


if __name__ == "__main__":
    read = {path.stem: parse(path.read_text()) for path in sorted(TRANSCRIPTS.glob("*.transcript"))}
    asked = {name: steps for name, steps in read.items() if playable(steps) and sys.argv[1:] in ([], [name])}
    broker_settings = {
        "group.initial.rebalance.delay.ms": "3000",
        "group.min.session.timeout.ms": "6000",
        "offsets.topic.num.partitions": "5",
    }
    with (
        tempfile.TemporaryDirectory() as directory,
        apache_kafka(Path(directory) / "kafka", broker_settings) as broker,
    ):
        broker_host, broker_port = broker.bootstrap.split(":")
        sys.exit(asyncio.run(main(broker_host, int(broker_port), asked)))
