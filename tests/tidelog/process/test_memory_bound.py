"""How much memory an agent is said to take."""

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest

from agent.security.acls.acl_index import AclIndex
from agent.security.acls.authorizer import LONGEST_REMEMBERED, Authorizer
from agent.security.acls.settings import AuthorizationSettings
from agent.security.logins.failed_logins import FailedLogins
from agent.security.logins.known_credentials import KnownCredentials
from agent.security.logins.passwords import Passwords, Verified
from agent.security.principal import Principal
from agent.security.sasl import scram
from agent.security.sasl.scram import ScramExchange
from agent.security.sasl.settings import SaslSettings
from agent.settings import AgentSettings
from agent.write_path.committer import SequenceGaps
from cache_ring.coordinates.coordinate_cache import CoordinateCache, CoordinateLimits
from cache_ring.coordinates.coordinate_push import PartitionsRead
from cache_ring.pages.run_bytes import RunIndexes
from cache_ring.peers.peer_server import Subscriptions
from sequencer.commits.coordinates import PartitionCoordinates, RunCoordinate
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from sequencer.security.credentials import (
    Credential,
    CredentialKey,
    ScramKeys,
    ScramMechanism,
    UserCredentials,
)
from storage.batches.record_batch import empty_batch
from storage.identifiers import (
    BytePosition,
    ObjectKey,
    Offset,
    Partition,
    ProducerId,
    TopicId,
    new_segment_id,
)
from storage.segments.keys import segment_key
from tests.support.settings import all_settings
from tidelog.process import memory_bound
from tidelog.process.memory_bound import PROCESS_BYTES, byte_settings, memory_bound_bytes
from tidelog.process.settings import ProcessSettings
from tidelog.process.settings_fit import AllSettings

ENTRIES = 4_096
FEWEST_INDEXED = 32


def settings(roles: str = "kafka,jobs", **of_agent: Any) -> AllSettings:
    return all_settings(agent=AgentSettings.model_validate(of_agent), process=ProcessSettings(roles=roles))


def test_an_agent_with_the_defaults_takes_at_most_a_gibibyte_and_three_eighths() -> None:
    assert memory_bound_bytes(settings()) <= 11 << 27


def test_every_byte_of_a_setting_counts() -> None:
    more = settings(request_memory_bytes=AgentSettings().request_memory_bytes + 1)

    assert memory_bound_bytes(more) == memory_bound_bytes(settings()) + 1


def test_logins_count_where_clients_must_log_in() -> None:
    asking = replace(settings(), sasl=SaslSettings(sasl_mechanisms="PLAIN"))

    assert (
        memory_bound_bytes(settings())
        < memory_bound_bytes(asking)
        <= memory_bound_bytes(settings()) + (1 << 27)
    )


def test_acls_and_decisions_count_with_an_authorizer() -> None:
    authorization = AuthorizationSettings(authorizer=True)
    with_it = replace(settings(), authorization=authorization)

    assert memory_bound_bytes(with_it) - memory_bound_bytes(settings()) == (
        2 * memory_bound.ACL_BYTES * authorization.max_acls
        + memory_bound.DECISION_BYTES * authorization.acl_decisions
    )


def test_a_role_that_is_not_played_takes_nothing() -> None:
    jobs, kafka = byte_settings(settings("jobs")), byte_settings(settings("kafka"))

    assert jobs.keys() == {"merge_memory_bytes", "checkpoint_part_bytes"}
    assert not jobs.keys() & kafka.keys()
    assert memory_bound_bytes(settings("jobs")) == PROCESS_BYTES + sum(jobs.values())


def a_run(number: int, topic_id: TopicId, partition: int, length: int = 1) -> RunCoordinate:
    return RunCoordinate(
        topic_id=topic_id,
        partition=Partition(partition),
        base_offset=Offset(1_000_000 + number * FEWEST_INDEXED),
        last_offset=Offset(1_000_000 + number * FEWEST_INDEXED + FEWEST_INDEXED - 1),
        object_key=ObjectKey(segment_key("tidelog", new_segment_id())),
        object_size_bytes=8 << 20,
        position=BytePosition(100_000 + number),
        length=length,
        min_timestamp_ms=1_700_000_000_000 + number,
        max_timestamp_ms=1_700_000_000_001 + number,
    )


def coordinates_of(runs: list[RunCoordinate]) -> PartitionCoordinates:
    return PartitionCoordinates(
        topic_id=runs[0].topic_id,
        partition=runs[0].partition,
        log_start_offset=runs[0].base_offset,
        local_start_offset=Offset(0),
        high_watermark=Offset(runs[-1].last_offset + 1),
        last_stable_offset=Offset(runs[-1].last_offset + 1),
        coordinate_epoch=300,
        runs=tuple(runs),
    )


LIMITS = CoordinateLimits(
    max_age_s=60.0,
    max_runs=ENTRIES * 10,
    max_runs_per_partition=4096,
    max_ahead=1,
    max_windows=1,
    max_aborted=2000,
)


def cached_runs(count: int) -> object:
    cache, topic_id = CoordinateCache(LIMITS), TopicId(uuid4())
    cache.learn(coordinates_of([a_run(number, topic_id, 0) for number in range(count)]), None, 1.0)
    return cache


def cached_partitions(count: int) -> object:
    cache, topic_id = CoordinateCache(LIMITS), TopicId(uuid4())
    for number in range(count // 2):
        cache.learn(coordinates_of([a_run(0, topic_id, number)]), None, float(number))
    return cache


def indexed_batches(count: int) -> object:
    indexes, topic_id, batches = (
        RunIndexes(count),
        TopicId(uuid4()),
        memoryview(empty_batch(1, 0) * FEWEST_INDEXED),
    )
    for number in range(count // FEWEST_INDEXED):
        indexes.run_bytes(a_run(number, topic_id, 0, len(batches)), [batches])
    assert indexes.batches == count
    return indexes


def read_partitions(count: int) -> object:
    partitions_read, topic_id = PartitionsRead(60.0, count), TopicId(uuid4())
    for number in range(count):
        partitions_read.note((topic_id, Partition(number)), float(number))
    return partitions_read


def subscriptions(count: int) -> object:
    kept, topic_id = Subscriptions[int](count), TopicId(uuid4())
    for number in range(count):
        kept.subscribe(1, [(topic_id, Partition(number))], float(number))
    return kept


def sequence_gaps(count: int) -> object:
    gaps = SequenceGaps(60.0, count)
    for number in range(count):
        gaps.accepts((TopicId(uuid4()), Partition(number), ProducerId(number), 0), float(number))
    return gaps


def a_long_name(number: int) -> str:
    return f"{number:0255}"


def known_credentials(count: int) -> KnownCredentials:
    nowhere = cast(UserCredentials, None)
    return KnownCredentials(nowhere, SaslSettings(sasl_credentials_cached=count), time.monotonic)


def a_credential(user: str, mechanism: ScramMechanism, number: int) -> Credential:
    salt, stored, server = (number.to_bytes(size, "big") for size in (1_024, 64, 64))
    keys = ScramKeys(salt=salt, iterations=4_096 + number, stored_key=stored, server_key=server)
    return Credential(key=CredentialKey(user, mechanism), keys=keys, change=10**6 + number)


def credentials(count: int) -> object:
    known = known_credentials(count)
    for number in range(count):
        user = a_long_name(number)
        known._keep(user, tuple(a_credential(user, one, number) for one in ScramMechanism))
    return known


def strangers(count: int) -> object:
    known = known_credentials(count)
    for number in range(count):
        known._keep(a_long_name(number), ())
    return known


def verified_passwords(count: int) -> object:
    passwords = Passwords(SaslSettings(sasl_verified_passwords=count))
    for number in range(count):
        verified = Verified(
            change=10**6 + number, mechanism=ScramMechanism.SHA_512, digest=number.to_bytes(32, "big")
        )
        passwords._remember(a_long_name(number), verified)
    return passwords


def failing_hosts(count: int) -> object:
    failed = FailedLogins(base_s=0.1, most_s=1.0, most_hosts=count)
    for number in range(count):
        failed.delay_s(f"2001:db8:1234:5678:9abc:def0:1234:{number:04x}", float(number))
    return failed


def logins(count: int) -> object:
    """SCRAM's exchanges with the longest messages, in letters that take most."""
    begun = []
    for number in range(count):
        user = f"\U0001f600{number:0251}"
        first = f"n,a={user},n={user},r={'x' * 256},e=".encode()
        exchange = ScramExchange(ScramMechanism.SHA_512, number.to_bytes(24, "big"))
        exchange.first(first + b"x" * (4_096 - len(first)))
        exchange.challenge(scram.decoy(ScramMechanism.SHA_512, user, b"key", 4_096))
        begun.append(exchange)
    return begun


def acls(count: int) -> object:
    return AclIndex().with_changes(
        (
            Acl(
                resource_type=ResourceType.TOPIC,
                pattern_type=PatternType.LITERAL if number % 2 else PatternType.PREFIXED,
                name=f"{number:0249}",
                principal=f"User:{number % 100}",
                host="*",
                operation=Operation.READ,
                permission=Permission.ALLOW,
            )
            for number in range(count)
        ),
        (),
    )


def decisions(count: int) -> object:
    authorizer = Authorizer(AuthorizationSettings(authorizer=True, acl_decisions_per_client=count))
    authorizer.index = AclIndex()
    rights = authorizer.rights(Principal("ann"), "10.0.0.1")
    for number in range(count):
        name = f"{number:06}".rjust(LONGEST_REMEMBERED, "\U0001f600")
        rights.allows(Operation.READ, ResourceType.TOPIC, name)
    return rights


@pytest.mark.parametrize(
    ("make", "said_bytes"),
    [
        (cached_runs, memory_bound.CACHED_COORDINATE_BYTES),
        (cached_partitions, memory_bound.CACHED_COORDINATE_BYTES),
        (indexed_batches, memory_bound.INDEXED_BATCH_BYTES),
        (read_partitions, memory_bound.READ_PARTITION_BYTES),
        (subscriptions, memory_bound.SUBSCRIPTION_BYTES),
        (sequence_gaps, memory_bound.SEQUENCE_GAP_BYTES),
        (credentials, memory_bound.CREDENTIAL_BYTES),
        (strangers, memory_bound.STRANGER_BYTES),
        (verified_passwords, memory_bound.VERIFIED_PASSWORD_BYTES),
        (logins, memory_bound.LOGIN_BYTES),
        (failing_hosts, memory_bound.FAILING_HOST_BYTES),
        (acls, memory_bound.ACL_BYTES),
        (decisions, memory_bound.DECISION_BYTES),
    ],
)
def test_an_entry_takes_no_more_than_is_said(make: Callable[[int], object], said_bytes: int) -> None:
    make(FEWEST_INDEXED)
    gc.collect()
    tracemalloc.start()
    try:
        kept = make(ENTRIES)
        entry_bytes = tracemalloc.get_traced_memory()[0] / ENTRIES
    finally:
        tracemalloc.stop()
    del kept
    print(f"{make.__name__}: {entry_bytes:.0f} bytes an entry, {said_bytes} are said")

    assert said_bytes / 4 < entry_bytes <= said_bytes
