"""What a request asks the authorizer, and which checks each API makes.

`CHECKS` names the checks of every served API, as in Kafka's table "Operations and Resources on Protocols" and
in KafkaApis. `docs/kafka-api.md` shows it. A refusal that it does not name is a bug: `may` asserts so.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from agent.kafka.context import RequestContext, asker_of
from agent.kafka.served import APIS
from agent.kafka.uses import UsesAudit
from agent.security.audit.events import NO_ERROR, Resource
from agent.slices import Slices
from sequencer.security.acl import CLUSTER_NAME, Operation, ResourceType
from sequencer.tenants.tenant_names import tenant_of
from sequencer.topics.topics import Topic

TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    operation: Operation
    resource_type: ResourceType
    when: str
    """What is checked, and what a refusal means."""


_NAMES: Final = {api.key: api.name for api in APIS}


def may(operation: Operation, resource_type: ResourceType, name: str, context: RequestContext[Any]) -> bool:
    """Returns whether the client may do this. A refusal is logged."""
    rights = context.connection.rights
    if rights.is_unrestricted:
        return True
    if rights.allows(operation, resource_type, name):
        if context.parts.audit.names_allowed:
            _note(operation, resource_type, name, context, is_allowed=True)
        return True
    note_refusal(operation, resource_type, name, context)
    return False


def may_on_cluster(operation: Operation, context: RequestContext[Any]) -> bool:
    return may(operation, CLUSTER, CLUSTER_NAME, context)


def may_on_quotas(operation: Operation, context: RequestContext[Any]) -> bool:
    """Returns whether the client may do this with the client quotas that it can name. A refusal is logged."""
    if context.connection.rights.allows_on_quotas(operation):
        return True
    note_refusal(operation, CLUSTER, CLUSTER_NAME, context)
    return False


def note_refusal(
    operation: Operation, resource_type: ResourceType, name: str, context: RequestContext[Any]
) -> None:
    key = context.api_key
    assert any((check.operation, check.resource_type) == (operation, resource_type) for check in CHECKS[key])
    _note(operation, resource_type, name, context, is_allowed=False)


def _note(
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    context: RequestContext[UsesAudit],
    *,
    is_allowed: bool,
) -> None:
    outcome = NO_ERROR if is_allowed else "DENIED"
    context.parts.audit.decided(
        asker_of(context.connection, context.client_id),
        _NAMES[context.api_key],
        operation.name,
        Resource(type=resource_type.name, name=name, outcome=outcome),
        is_allowed=is_allowed,
    )


def permitted(
    operation: Operation, resource_type: ResourceType, names: Iterable[str], context: RequestContext[Any]
) -> Collection[str]:
    """Returns those of the names on which the client may do this. Refusals are logged."""
    rights = context.connection.rights
    if rights.is_unrestricted:
        return frozenset(names)
    found, names_allowed = set(), context.parts.audit.names_allowed
    for name in frozenset(names):
        if rights.allows(operation, resource_type, name):
            found.add(name)
            if names_allowed:
                _note(operation, resource_type, name, context, is_allowed=True)
        else:
            note_refusal(operation, resource_type, name, context)
    return found


async def visible_topics(topics: Sequence[Topic], context: RequestContext[Any]) -> Sequence[Topic]:
    """Returns those that the client may describe, for a listing: what is left out is not a refusal. Other
    clients are served meanwhile. A client of no tenant is not listed the topics of tenants.
    """
    rights = context.connection.rights
    if rights.is_unrestricted:
        return [topic for topic in topics if tenant_of(topic.name) is None]
    found, slices = [], Slices()
    for topic in topics:
        if rights.allows(Operation.DESCRIBE, TOPIC, topic.name):
            found.append(topic)
        await slices.look()
    return found


def is_silently_allowed(
    operation: Operation, resource_type: ResourceType, name: str, context: RequestContext[Any]
) -> bool:
    """As `may`, without a line in the log: something else may allow the request, or it is only a filter."""
    rights = context.connection.rights
    return rights.is_unrestricted or rights.allows(operation, resource_type, name)


def is_restricted(context: RequestContext[Any]) -> bool:
    """False: every check would pass."""
    return not context.connection.rights.is_unrestricted


def _check(operation: Operation, resource_type: ResourceType, when: str) -> Check:
    return Check(operation=operation, resource_type=resource_type, when=when)


_READ_GROUP: Final = _check(Operation.READ, GROUP, "the group: GROUP_AUTHORIZATION_FAILED")
_DESCRIBE_GROUP: Final = _check(Operation.DESCRIBE, GROUP, "each group: GROUP_AUTHORIZATION_FAILED")
_WRITE_TRANSACTION: Final = _check(
    Operation.WRITE, TRANSACTIONAL_ID, "the transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
)
_EACH_TOPIC: Final = "each topic: TOPIC_AUTHORIZATION_FAILED"
_WHOLE: Final = "the request: CLUSTER_AUTHORIZATION_FAILED"
_CONFIGS: Final = (
    (TOPIC, "each topic: TOPIC_AUTHORIZATION_FAILED"),
    (GROUP, "each group: GROUP_AUTHORIZATION_FAILED"),
    (CLUSTER, "brokers, and subscriptions to client metrics: CLUSTER_AUTHORIZATION_FAILED"),
)

CHECKS: Final[Mapping[int, tuple[Check, ...]]] = MappingProxyType(
    {
        0: (
            _check(Operation.WRITE, TOPIC, _EACH_TOPIC),
            _check(
                Operation.WRITE,
                TRANSACTIONAL_ID,
                "transactional batches: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the whole request",
            ),
        ),
        1: (_check(Operation.READ, TOPIC, _EACH_TOPIC),),
        2: (_check(Operation.DESCRIBE, TOPIC, _EACH_TOPIC),),
        3: (
            _check(
                Operation.DESCRIBE,
                TOPIC,
                f"{_EACH_TOPIC}, whether it exists or not; left out if all are asked for",
            ),
            _check(Operation.CREATE, CLUSTER, "topics that are created on demand, or:"),
            _check(
                Operation.CREATE, TOPIC, "each topic that is created on demand: TOPIC_AUTHORIZATION_FAILED"
            ),
            _check(Operation.DESCRIBE, CLUSTER, "the cluster's authorized operations: none are named"),
        ),
        8: (_READ_GROUP, _check(Operation.READ, TOPIC, _EACH_TOPIC)),
        9: (
            _DESCRIBE_GROUP,
            _check(Operation.DESCRIBE, TOPIC, f"{_EACH_TOPIC}; left out if all are asked for"),
        ),
        10: (
            _DESCRIBE_GROUP,
            _check(
                Operation.DESCRIBE,
                TRANSACTIONAL_ID,
                "each transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            ),
        ),
        11: (_READ_GROUP,),
        12: (_READ_GROUP,),
        13: (_READ_GROUP,),
        14: (_READ_GROUP,),
        15: (_DESCRIBE_GROUP,),
        16: (
            _check(Operation.DESCRIBE, CLUSTER, "all groups, or:"),
            _check(Operation.DESCRIBE, GROUP, "each group: left out"),
        ),
        17: (),
        18: (),
        19: (
            _check(Operation.CREATE, CLUSTER, "all topics, or:"),
            _check(Operation.CREATE, TOPIC, _EACH_TOPIC),
            _check(
                Operation.DESCRIBE_CONFIGS,
                TOPIC,
                "the configs in the answer: TOPIC_AUTHORIZATION_FAILED in their place",
            ),
        ),
        20: (
            _check(Operation.DELETE, CLUSTER, "all topics, or:"),
            _check(Operation.DELETE, TOPIC, _EACH_TOPIC),
            _check(
                Operation.DESCRIBE,
                TOPIC,
                "without it TOPIC_AUTHORIZATION_FAILED, whether the topic exists or not, and no name",
            ),
        ),
        21: (_check(Operation.DELETE, TOPIC, _EACH_TOPIC),),
        22: (
            _WRITE_TRANSACTION,
            _check(Operation.IDEMPOTENT_WRITE, CLUSTER, "without a transactional id, or:"),
            _check(
                Operation.WRITE, TOPIC, "without a transactional id, any topic: CLUSTER_AUTHORIZATION_FAILED"
            ),
        ),
        23: (
            _check(Operation.CLUSTER_ACTION, CLUSTER, "all topics, or:"),
            _check(Operation.DESCRIBE, TOPIC, _EACH_TOPIC),
        ),
        24: (
            _check(
                Operation.WRITE,
                TRANSACTIONAL_ID,
                "v0-v3, the transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            ),
            _check(Operation.WRITE, TOPIC, f"v0-v3, {_EACH_TOPIC}, and OPERATION_NOT_ATTEMPTED for the rest"),
            _check(Operation.CLUSTER_ACTION, CLUSTER, f"from v4 on, {_WHOLE}"),
        ),
        25: (_WRITE_TRANSACTION, _READ_GROUP),
        26: (_WRITE_TRANSACTION,),
        27: (
            _check(Operation.ALTER, CLUSTER, "the request, or:"),
            _check(Operation.CLUSTER_ACTION, CLUSTER, _WHOLE),
        ),
        28: (_WRITE_TRANSACTION, _READ_GROUP, _check(Operation.READ, TOPIC, _EACH_TOPIC)),
        29: (_check(Operation.DESCRIBE, CLUSTER, _WHOLE),),
        30: (_check(Operation.ALTER, CLUSTER, _WHOLE),),
        31: (_check(Operation.ALTER, CLUSTER, _WHOLE),),
        32: tuple(_check(Operation.DESCRIBE_CONFIGS, kind, when) for kind, when in _CONFIGS),
        33: tuple(_check(Operation.ALTER_CONFIGS, kind, when) for kind, when in _CONFIGS),
        35: (_check(Operation.DESCRIBE, CLUSTER, _WHOLE),),
        36: (),
        37: (_check(Operation.ALTER, TOPIC, _EACH_TOPIC),),
        42: (_check(Operation.DELETE, GROUP, "each group: GROUP_AUTHORIZATION_FAILED"),),
        43: (_check(Operation.ALTER, CLUSTER, _WHOLE),),
        44: tuple(_check(Operation.ALTER_CONFIGS, kind, when) for kind, when in _CONFIGS),
        45: (_check(Operation.ALTER, CLUSTER, _WHOLE),),
        46: (_check(Operation.DESCRIBE, CLUSTER, _WHOLE),),
        47: (
            _check(Operation.DELETE, GROUP, "the group: GROUP_AUTHORIZATION_FAILED"),
            _check(Operation.READ, TOPIC, _EACH_TOPIC),
        ),
        48: (_check(Operation.DESCRIBE_CONFIGS, CLUSTER, _WHOLE),),
        49: (_check(Operation.ALTER_CONFIGS, CLUSTER, "each entity: CLUSTER_AUTHORIZATION_FAILED"),),
        50: (_check(Operation.DESCRIBE, CLUSTER, _WHOLE),),
        51: (_check(Operation.ALTER, CLUSTER, "each user: CLUSTER_AUTHORIZATION_FAILED"),),
        60: (_check(Operation.DESCRIBE, CLUSTER, "the cluster's authorized operations: none are named"),),
        61: (_check(Operation.READ, TOPIC, _EACH_TOPIC),),
        65: (
            _check(
                Operation.DESCRIBE,
                TRANSACTIONAL_ID,
                "each transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            ),
            _check(Operation.DESCRIBE, TOPIC, "each topic of a transaction: left out"),
        ),
        66: (_check(Operation.DESCRIBE, TRANSACTIONAL_ID, "each transactional id: left out"),),
        68: (
            _READ_GROUP,
            _check(
                Operation.DESCRIBE,
                TOPIC,
                "subscribed topics: TOPIC_AUTHORIZATION_FAILED; topics that match a regular expression: left "
                "out",
            ),
        ),
        69: (
            _DESCRIBE_GROUP,
            _check(
                Operation.DESCRIBE, TOPIC, "assigned topics: TOPIC_AUTHORIZATION_FAILED for the whole group"
            ),
        ),
        71: (),
        72: (),
        74: (_check(Operation.DESCRIBE_CONFIGS, CLUSTER, _WHOLE),),
        75: (
            _check(
                Operation.DESCRIBE,
                TOPIC,
                f"{_EACH_TOPIC}, whether it exists or not; left out if all are asked for",
            ),
        ),
        88: (
            _READ_GROUP,
            _check(Operation.DESCRIBE, TOPIC, "topics of the topology: TOPIC_AUTHORIZATION_FAILED"),
            _check(Operation.CREATE, CLUSTER, "missing internal topics, or:"),
            _check(
                Operation.CREATE, TOPIC, "each missing internal topic: the status says which are not created"
            ),
        ),
        89: (
            _DESCRIBE_GROUP,
            _check(
                Operation.DESCRIBE,
                TOPIC,
                "topics of the topology: TOPIC_AUTHORIZATION_FAILED for the whole group",
            ),
        ),
    }
)
"""By API key. Empty: every client may use the API."""
