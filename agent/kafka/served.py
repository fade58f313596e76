"""The Kafka APIs an agent serves, in one list."""

from agent.kafka.api import Api
from agent.kafka.apis import (
    alter_configs,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
)
from agent.kafka.apis.api_versions import api_versions

_APIS = (
    produce.API,
    fetch.API,
    list_offsets.API,
    metadata.API,
    offset_commit.API,
    offset_fetch.API,
    find_coordinator.API,
    join_group.API,
    heartbeat.API,
    leave_group.API,
    sync_group.API,
    describe_groups.API,
    list_groups.API,
    delete_groups.API,
    offset_delete.API,
    consumer_group_heartbeat.API,
    consumer_group_describe.API,
    create_topics.API,
    delete_topics.API,
    init_producer_id.API,
    describe_configs.API,
    alter_configs.API,
    list_config_resources.API,
    create_partitions.API,
    incremental_alter_configs.API,
    describe_cluster.API,
)


def served_apis() -> tuple[Api, ...]:
    """Every API, with the one that advertises them."""
    return (*_APIS, api_versions(_APIS))
