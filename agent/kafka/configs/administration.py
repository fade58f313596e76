"""Common rules of administrative requests: their timeouts, and names that may occur only once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused
from agent.kafka.authorization import GROUP, TOPIC, may, may_on_cluster, may_on_quotas
from agent.kafka.configs.config_entries import GROUP_RESOURCE, TOPIC_RESOURCE
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesSequencer, UsesTopics
from sequencer.groups.groups import can_be_id
from sequencer.security.acl import Operation


class UsesResources(UsesSequencer, UsesTopics, Protocol):
    """The parts that keep configs in Postgres."""


_Name = TypeVar("_Name", bound=Hashable)


def named_twice(names: Iterable[_Name]) -> set[_Name]:
    return {name for name, times in Counter(names).items() if times > 1}


async def configs_of(
    resources: Collection[tuple[int, str]], context: RequestContext[UsesResources]
) -> dict[tuple[int, str], Mapping[str, str]]:
    """Returns the configs that are set for the topics and groups among these resources (type, name). It has
    every existing topic, and the groups for which some were set. Raises one of ADMINISTRATION_ERRORS.
    """
    names = {name for resource_type, name in resources if resource_type == TOPIC_RESOURCE}
    group_ids = {name for resource_type, name in resources if resource_type == GROUP_RESOURCE}
    topics = await context.parts.topics.fresh(names) if names else {}
    groups = await context.parts.sequencer.group_configs.of(group_ids) if group_ids else {}
    return {
        **{(TOPIC_RESOURCE, name): topic.config for name, topic in topics.items()},
        **{(GROUP_RESOURCE, group_id): config for group_id, config in groups.items()},
    }


def check_config_access(
    operation: Operation, resource_type: int, name: str, context: RequestContext[object]
) -> None:
    """Raises AdministrationRefused if the client may not describe or alter the configs of a resource."""
    if resource_type == TOPIC_RESOURCE:
        if not may(operation, TOPIC, name, context):
            raise AdministrationRefused(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    elif resource_type == GROUP_RESOURCE:
        if not may(operation, GROUP, name, context):
            raise AdministrationRefused(ErrorCode.group_authorization_failed, "Group authorization failed.")
    else:
        check_cluster_access(operation, context)


def check_cluster_access(operation: Operation, context: RequestContext[Any]) -> None:
    """Raises AdministrationRefused."""
    if not may_on_cluster(operation, context):
        raise AdministrationRefused(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")


def check_quota_access(operation: Operation, context: RequestContext[Any]) -> None:
    """Raises AdministrationRefused."""
    if not may_on_quotas(operation, context):
        raise AdministrationRefused(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")


def check_group_name(name: str) -> None:
    """Raises AdministrationRefused."""
    if not name:
        raise AdministrationRefused(ErrorCode.invalid_request, "Group name must not be empty")
    if not can_be_id(name):
        raise AdministrationRefused(
            ErrorCode.invalid_group_id, "A group's name is 1 to 1,024 bytes, none of them NUL"
        )


@asynccontextmanager
async def within(timeout: timedelta, context: RequestContext[object]) -> AsyncIterator[None]:
    """Raises AdministrationRefused with REQUEST_TIMED_OUT once the request's time is over. Its work may be
    done all the same. A timeout of zero or less is ignored. No request has longer than `max_admin_timeout_s`.
    """
    longest_s = context.settings.max_admin_timeout_s
    wait_s = min(timeout.total_seconds(), longest_s) if timeout > timedelta(0) else longest_s
    deadline_s = context.received_at_s + wait_s
    due = asyncio.timeout_at(deadline_s)
    try:
        async with due:
            yield
    except TimeoutError as error:
        if not due.expired():
            raise
        raise AdministrationRefused(
            ErrorCode.request_timed_out, "the request's timeout was over before its answer"
        ) from error
