"""The authorizer against its promises, and against Kafka's own StandardAuthorizer."""

import random

import pytest

from agent.security.acls.acl_index import EVERY_OPERATION, AclIndex
from agent.security.acls.authorizer import Authorizer
from agent.security.acls.settings import AuthorizationSettings
from agent.security.principal import ANONYMOUS, Principal
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from tests.support.java import Java
from tests.support.kafka_authorizer import (
    HOSTS,
    PRINCIPALS,
    RESOURCE_TYPES,
    added,
    answers,
    authorizer_program,
    checked,
    random_acl,
    random_name,
    removed,
    started,
)
from tests.support.seeds import seeds

_ALICE = Principal("alice")
_HOST = "10.0.0.1"


def _acl(
    operation: Operation,
    name: str = "orders",
    *,
    permission: Permission = Permission.ALLOW,
    pattern_type: PatternType = PatternType.LITERAL,
    resource_type: ResourceType = ResourceType.TOPIC,
    principal: str = "User:alice",
    host: str = "*",
) -> Acl:
    return Acl(
        resource_type=resource_type,
        pattern_type=pattern_type,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def _authorizer(*acls: Acl, **settings: object) -> Authorizer:
    authorizer = Authorizer(AuthorizationSettings.model_validate({"authorizer": True, **settings}))
    authorizer.index = AclIndex().with_changes(acls, ())
    return authorizer


def test_nothing_is_allowed_before_the_first_snapshot_except_to_super_users() -> None:
    authorizer = Authorizer(
        AuthorizationSettings(
            authorizer=True, super_users="User:root ; User:other", allow_everyone_if_no_acl_found=True
        )
    )

    rights = authorizer.rights(_ALICE, _HOST)

    assert not rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert not rights.allows_some(Operation.WRITE, ResourceType.TOPIC)
    assert authorizer.rights(Principal("root"), _HOST).allows(Operation.ALTER, ResourceType.CLUSTER)
    authorizer.index = AclIndex()
    assert rights.allows(Operation.READ, ResourceType.TOPIC, "orders")


def test_everything_is_allowed_without_an_authorizer() -> None:
    rights = Authorizer(AuthorizationSettings()).rights(ANONYMOUS, _HOST)

    assert rights.is_unrestricted
    assert rights.operations(ResourceType.TOPIC, "orders") == EVERY_OPERATION


def test_a_denial_wins_over_every_allowance() -> None:
    rights = _authorizer(
        _acl(Operation.ALL, "*"),
        _acl(Operation.READ, "or", pattern_type=PatternType.PREFIXED, permission=Permission.DENY),
    ).rights(_ALICE, _HOST)

    assert not rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, "orders")
    assert rights.allows(Operation.READ, ResourceType.TOPIC, "payments")


def test_a_change_of_acls_changes_decisions_that_were_remembered() -> None:
    authorizer = _authorizer(_acl(Operation.READ))
    rights = authorizer.rights(_ALICE, _HOST)
    assert rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert not rights.allows_some(Operation.WRITE, ResourceType.TOPIC)
    assert authorizer.index is not None

    authorizer.index = authorizer.index.with_changes([_acl(Operation.WRITE)], [_acl(Operation.READ)])

    assert not rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert rights.allows_some(Operation.WRITE, ResourceType.TOPIC)


def test_remembered_decisions_are_bounded() -> None:
    rights = _authorizer(_acl(Operation.READ, "*"), acl_decisions_per_client=10).rights(_ALICE, _HOST)

    for number in range(1_000):
        assert rights.allows(Operation.READ, ResourceType.TOPIC, f"topic-{number}")

    assert len(rights._operations) <= 10


def test_decisions_of_all_clients_together_are_bounded() -> None:
    authorizer = _authorizer(_acl(Operation.READ), acl_decisions=10)
    clients = [authorizer.rights(Principal(f"user-{number}"), _HOST) for number in range(8)]
    for number in range(100):
        for rights in clients:
            assert not rights.allows(Operation.READ, ResourceType.TOPIC, f"topic-{number}")
            assert sum(len(each._operations) for each in clients) <= 10


def test_a_decision_about_a_longer_name_than_a_topic_can_have_is_not_remembered() -> None:
    authorizer = _authorizer(_acl(Operation.READ, "x", pattern_type=PatternType.PREFIXED))
    rights = authorizer.rights(_ALICE, _HOST)
    for length in (249, 250, 1_000_000):
        assert rights.allows(Operation.READ, ResourceType.TOPIC, "x" * length)
    assert [len(name) for _, name in rights._operations] == [249]


def test_rights_of_one_client_are_shared_and_end_with_their_last_user() -> None:
    authorizer = _authorizer()
    rights = authorizer.rights(_ALICE, _HOST)

    assert authorizer.rights(Principal("alice"), _HOST) is rights
    assert authorizer.rights(_ALICE, "10.0.0.2") is not rights

    del rights
    assert not authorizer._rights


def test_an_ipv6_address_matches_acls_in_both_of_its_usual_spellings() -> None:
    for written in ("2001:db8::1", "2001:db8:0:0:0:0:0:1"):
        rights = _authorizer(_acl(Operation.READ, host=written)).rights(_ALICE, "2001:db8::1")
        assert rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
    mapped = _authorizer(_acl(Operation.READ, host="10.0.0.1")).rights(_ALICE, "::ffff:10.0.0.1")
    assert mapped.allows(Operation.READ, ResourceType.TOPIC, "orders")


def test_super_users_need_a_type() -> None:
    with pytest.raises(ValueError, match="write User:admin"):
        AuthorizationSettings(super_users="admin")


@pytest.mark.parametrize("seed", seeds(2))
def test_an_index_after_changes_equals_one_made_at_once(seed: int) -> None:
    chosen = random.Random(seed)
    index, kept = AclIndex(), set[Acl]()
    for _ in range(30):
        gone = set(chosen.sample(sorted(kept, key=repr), len(kept) // 3))
        new = {random_acl(chosen) for _ in range(10)} - gone
        index = index.with_changes(new, gone)
        kept = (kept - gone) | new

    at_once = AclIndex().with_changes(kept, ())

    assert len(index) == len(at_once) == len(kept)
    assert {owner: found for owner, found in index._of.items() if found.literal or found.prefixed} == (
        at_once._of
    )
    assert index.with_changes((), kept)._named[ResourceType.TOPIC].literal == {}


_CLUSTERS, _CHECKS, _SOME = 12, 900, 200


def test_decisions_equal_those_of_kafkas_authorizer(java: Java) -> None:
    """12 clusters with up to 120 overlapping ACLs, a quarter of them removed again; 12,000 decisions."""
    program = authorizer_program(java)
    for seed in seeds(2):
        chosen = random.Random(seed)
        commands: list[str] = []
        expected: list[tuple[bool, str]] = []
        for cluster in range(_CLUSTERS):
            allow_everyone = cluster % 2 == 1
            commands.append(started(["User:root"], allow_everyone=allow_everyone))
            acls = list({random_acl(chosen) for _ in range(chosen.choice((0, 1, 5, 20, 60, 120)))})
            gone = chosen.sample(range(len(acls)), len(acls) // 4)
            commands += [added(number, acl) for number, acl in enumerate(acls)]
            commands += [removed(number) for number in gone]
            authorizer = _authorizer(
                *acls, super_users="User:root", allow_everyone_if_no_acl_found=allow_everyone
            )
            assert authorizer.index is not None
            authorizer.index = authorizer.index.with_changes((), [acls[number] for number in gone])
            for number in range(_CHECKS + _SOME):
                name = random_name(chosen) if number < _CHECKS else None
                principal = chosen.choice((*PRINCIPALS, "User:root"))
                host, operation = chosen.choice(HOSTS), chosen.choice(tuple(Operation))
                resource_type = chosen.choice(RESOURCE_TYPES[:4])
                command = checked(principal, host, operation, resource_type, name)
                if operation is Operation.ALL:
                    continue  # nothing asks for it
                commands.append(command)
                kind, _, user = principal.partition(":")
                rights = authorizer.rights(Principal(user, kind), host)
                ours = (
                    rights.allows_some(operation, resource_type)
                    if name is None
                    else rights.allows(operation, resource_type, name)
                )
                expected.append((ours, command))

        theirs = answers(program, commands)

        assert len(theirs) == len(expected) > 10_000
        wrong = [
            (ours, kafka, command)
            for (ours, command), kafka in zip(expected, theirs, strict=True)
            if ours != (kafka == "ALLOWED")
        ]
        assert not wrong, (seed, len(wrong), wrong[:5])
