"""What each API names, for `translation.py`. An API without an entry is not served to tenants.

Topics, groups and transactional ids are found by kio's types. An entry says what else is a name, and which
fields of these types keep what they have: inside a group, topics have the names that its clients know
(`local_topics.py`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from agent.tenants.tenant import Tenant
from agent.tenants.translation import ApiNames, Fields, kept, local, qualified

_ADDRESS: Final = "ip"
_TOPIC_CONFIGS: Final = 2
_GROUP_CONFIGS: Final = 32


def _qualified_resource(value: str, entity: Any, tenant: Tenant) -> str:
    """A resource of configs: brokers have numbers in place of names."""
    return tenant.qualified(value) if entity.resource_type in (_TOPIC_CONFIGS, _GROUP_CONFIGS) else value


def _local_resource(value: str, entity: Any, tenant: Tenant) -> str:
    return tenant.local(value) if entity.resource_type in (_TOPIC_CONFIGS, _GROUP_CONFIGS) else value


def _qualified_principal(value: str, entity: Any, tenant: Tenant) -> str:  # noqa: ARG001 - as all translators
    """`User:alice`. What has no colon is refused where it is read."""
    kind, colon, name = value.partition(":")
    return f"{kind}:{tenant.qualified(name)}" if colon else value


def _local_principal(value: str, entity: Any, tenant: Tenant) -> str:  # noqa: ARG001
    kind, colon, name = value.partition(":")
    return f"{kind}:{tenant.local(name)}" if colon else value


def _own_store(value: str, entity: Any, tenant: Tenant) -> str:  # noqa: ARG001
    """Where the cluster's objects are is the operator's matter."""
    return f"/{tenant.name}"


def _qualified_entity(value: str, entity: Any, tenant: Tenant) -> str:
    """A user or a client id with quotas. Addresses are no names."""
    return value if entity.entity_type == _ADDRESS else tenant.qualified(value)


def _local_entity(value: str, entity: Any, tenant: Tenant) -> str | None:
    """The default within the tenant is named by its prefix alone. Addresses come back as they were said."""
    if entity.entity_type == _ADDRESS:
        return value
    return None if value == tenant.prefix else tenant.local(value)


def _names(*fields: str) -> Fields:
    return MappingProxyType(dict.fromkeys(fields, qualified))


def _shown_names(*fields: str) -> Fields:
    return MappingProxyType(dict.fromkeys(fields, local))


def _kept(*fields: str) -> Fields:
    return MappingProxyType(dict.fromkeys(fields, kept))


_TYPED: Final = ApiNames()
_CONFIG_RESOURCES: Final = ApiNames(
    request=MappingProxyType({"resource_name": _qualified_resource}),
    response=MappingProxyType({"resource_name": _local_resource}),
)
_ACLS: Final = ApiNames(
    request=MappingProxyType(
        {
            "resource_name": qualified,
            "principal": _qualified_principal,
            "resource_name_filter": qualified,
            "principal_filter": _qualified_principal,
        }
    ),
    response=MappingProxyType({"resource_name": local, "principal": _local_principal}),
    leaves_out=True,
)
_TOPOLOGY: Final = _kept("source_topics", "repartition_sink_topics", "name", "topic")

API_NAMES: Final[Mapping[int, ApiNames]] = MappingProxyType(
    {
        0: ApiNames(writes_itself=True),
        1: ApiNames(writes_itself=True),
        2: _TYPED,
        3: ApiNames(writes_itself=True),
        8: _TYPED,
        9: _TYPED,
        10: ApiNames(request=_names("key", "coordinator_keys"), response=_shown_names("key")),
        11: _TYPED,
        12: _TYPED,
        13: _TYPED,
        14: _TYPED,
        15: _TYPED,
        16: ApiNames(leaves_out=True),
        17: _TYPED,
        18: _TYPED,
        19: _TYPED,
        20: _TYPED,
        21: _TYPED,
        22: _TYPED,
        23: _TYPED,
        24: _TYPED,
        25: _TYPED,
        26: _TYPED,
        27: _TYPED,
        28: _TYPED,
        29: _ACLS,
        30: _ACLS,
        31: _ACLS,
        32: _CONFIG_RESOURCES,
        33: _CONFIG_RESOURCES,
        35: ApiNames(response=MappingProxyType({"log_dir": _own_store})),
        36: _TYPED,
        37: _TYPED,
        42: _TYPED,
        43: _TYPED,
        44: _CONFIG_RESOURCES,
        45: _TYPED,
        46: _TYPED,
        47: _TYPED,
        48: ApiNames(
            request=MappingProxyType({"match": _qualified_entity}),
            response=MappingProxyType({"entity_name": _local_entity}),
        ),
        49: ApiNames(
            request=MappingProxyType({"entity_name": _qualified_entity}),
            response=MappingProxyType({"entity_name": _local_entity}),
        ),
        50: ApiNames(request=_names("name"), response=_shown_names("user"), leaves_out=True),
        51: ApiNames(request=_names("name"), response=_shown_names("user")),
        60: _TYPED,
        61: _TYPED,
        65: _TYPED,
        66: ApiNames(leaves_out=True),
        68: ApiNames(request=_kept("subscribed_topic_names")),
        69: ApiNames(response=_kept("subscribed_topic_names")),
        71: _TYPED,
        72: _TYPED,
        74: ApiNames(response=MappingProxyType({"resource_name": _local_resource}), leaves_out=True),
        75: _TYPED,
        88: ApiNames(request=_TOPOLOGY, response=_TOPOLOGY),
        89: ApiNames(response=_TOPOLOGY),
    }
)
"""By API key."""

NOT_NAMES: Final = frozenset(
    {
        *("host", "rack", "rack_id", "cluster_id", "log_dir", "listener"),
        *("member_id", "group_instance_id", "instance_id", "leader", "client_id", "client_host"),
        *("protocol_type", "protocol_name", "protocol_data", "group_state", "group_type", "reason"),
        *("states_filter", "types_filter", "state_filters", "unknown_state_filters", "transaction_state"),
        *("committed_metadata", "metadata", "server_assignor", "assignor_name", "process_id"),
        *("configuration_keys", "documentation", "value", "key", "mechanism", "mechanisms"),
        *("client_software_name", "client_software_version", "requested_metrics"),
        "entity_type",
        *("host_filter", "subtopology_id", "component", "name"),
        # Matched with the names that the tenant's clients see.
        *("subscribed_topic_regex", "source_topic_regex", "transactional_id_pattern"),
    }
)
"""Texts of requests and responses that name nothing that tenants share: a client's own, or addresses, states
and settings. `name` and `key` are those of configs and protocols; where they name more, the API's entry says
so."""
