"""`python -m benchmarks.authorization`: what ACLs cost an agent, in CPU time on one core."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from agent.security.acls.acl_index import AclIndex
from agent.security.acls.authorizer import Authorizer, Rights
from agent.security.acls.settings import AuthorizationSettings
from agent.security.principal import Principal
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType

_CLIENTS = 100
_HOST = "10.0.0.1"
_PARTITIONS = 100
_LEAST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationFigures:
    """CPU time in microseconds."""

    acls: int
    first_check_us: float
    """Of a resource that the client has not named since the last change."""
    known_check_us: float
    produce_of_topics_us: float
    """All checks of a Produce to 100 topics, which the client has written before."""
    any_topic_us: float
    """The first time that a client asks whether it may write any topic."""
    change_us: float
    """One ACL added to the snapshot."""
    load_us: float
    """All of them, in pages."""


def an_acl(number: int) -> Acl:
    """Nine of ten are for one topic, the others for a prefix of 3 to 12 characters. One of 20 denies."""
    chosen = random.Random(number)
    is_prefix = number % 10 == 0
    name = f"{chosen.choice('abcdefgh')}-topic-{number}"
    return Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        name=name[: chosen.randint(3, 12)] if is_prefix else name,
        principal=f"User:client-{number % _CLIENTS}",
        host="*" if number % 7 else _HOST,
        operation=chosen.choice((Operation.READ, Operation.WRITE, Operation.ALL)),
        permission=Permission.DENY if number % 20 == 3 else Permission.ALLOW,
    )


def measure(count: int) -> AuthorizationFigures:
    settings = AuthorizationSettings(authorizer=True, acl_decisions_per_client=1_000_000)
    acls = [an_acl(number) for number in range(count)]
    began = time.process_time()
    index = AclIndex()
    for start in range(0, count, settings.acl_page):
        index = index.with_changes(acls[start : start + settings.acl_page], ())
    load_us = (time.process_time() - began) * 1e6
    authorizer = Authorizer(settings)
    authorizer.index = index
    rights = authorizer.rights(Principal("client-7"), _HOST)
    names = [f"{'abcdefgh'[number % 8]}-topic-{number}" for number in range(100_000)]
    position = 0

    def first() -> None:
        nonlocal position
        position += 1
        if position % len(names) == 0:
            rights._forget(authorizer.index)
        rights.allows(Operation.WRITE, ResourceType.TOPIC, names[position % len(names)])

    def any_topic() -> None:
        rights._forget(authorizer.index)
        rights.allows_some(Operation.CREATE, ResourceType.TOPIC)

    extra = an_acl(count + 7)
    written = names[:_PARTITIONS]
    return AuthorizationFigures(
        acls=count,
        first_check_us=_us(first),
        known_check_us=_us(lambda: rights.allows(Operation.WRITE, ResourceType.TOPIC, names[7])),
        produce_of_topics_us=_us(lambda: _all(rights, written)),
        any_topic_us=_us(any_topic),
        change_us=_us(lambda: index.with_changes([extra], ())),
        load_us=load_us,
    )


def _all(rights: Rights, names: Sequence[str]) -> None:
    for name in names:
        rights.allows(Operation.WRITE, ResourceType.TOPIC, name)


def _us(work: Callable[[], object]) -> float:
    calls, began = 0, time.process_time()
    while (used := time.process_time() - began) < _LEAST_S:
        for _ in range(20):
            work()
        calls += 20
    return used / calls * 1e6


def main() -> None:
    table = Table("", *(f"{count:,} ACLs" for count in (10_000, 100_000)), title="CPU time")
    found = [measure(count) for count in (10_000, 100_000)]
    rows: tuple[tuple[str, Callable[[AuthorizationFigures], float]], ...] = (
        ("a check, the first of its resource", lambda one: one.first_check_us),
        ("a check, repeated", lambda one: one.known_check_us),
        ("a Produce to 100 topics, repeated", lambda one: one.produce_of_topics_us),
        ("write to any topic, the first time", lambda one: one.any_topic_us),
        ("a change of one ACL", lambda one: one.change_us),
        ("the whole snapshot", lambda one: one.load_us),
    )
    for title, of in rows:
        table.add_row(title, *(f"{of(one):,.2f} µs" for one in found))
    Console(file=sys.stdout, width=100).print(table)


if __name__ == "__main__":
    main()
