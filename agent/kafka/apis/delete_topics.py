"""Kafka API 20, DeleteTopics, v1-v6 (KIP-516: by topic id from v6 on). The name is free at once; the bytes go later.

By id exactly the topic of that id is deleted, whatever its name is called by meanwhile. Refused: a topic named twice,
by neither name nor id, or by both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from agent.error_codes import ADMINISTRATION_ERRORS, Refused, administration_code
from agent.kafka.administration import named_twice, within
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.context import RequestContext
from sequencer.topics import Topic, UnknownTopic
from storage.identifiers import TopicId

_FIRST_VERSION_WITH_STATES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doomed:
    name: TopicName | None
    topic_id: TopicId | None


async def handle(request: Any, context: RequestContext) -> DeleteTopicsResponse:
    if context.api_version >= _FIRST_VERSION_WITH_STATES:
        doomed = [_Doomed(name=topic.name, topic_id=topic.topic_id) for topic in request.topics]
    else:
        doomed = [_Doomed(name=name, topic_id=None) for name in request.topic_names]
    twice = await _named_twice(doomed, context)
    results = []
    for topic in doomed:
        try:
            if topic in twice:
                raise Refused(ErrorCode.invalid_request, "Duplicate topic: it is named twice.")
            async with within(request.timeout, context):
                deleted = await _delete(topic, context)
        except ADMINISTRATION_ERRORS as error:
            results.append(_result(topic, administration_code(error), str(error)))
        else:
            results.append(
                DeletableTopicResult(
                    name=TopicName(deleted.name),
                    topic_id=deleted.topic_id,
                    error_code=ErrorCode.none,
                    error_message=None,
                )
            )
    return DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))


async def _named_twice(doomed: Sequence[_Doomed], context: RequestContext) -> set[_Doomed]:
    """What a request names twice, also once by its name and once by its id."""
    names = [topic.name for topic in doomed if topic.name is not None]
    ids = [topic.topic_id for topic in doomed if topic.topic_id is not None]
    try:
        ids_of_names = await context.parts.topics.by_name(names) if names and ids else {}
    except ADMINISTRATION_ERRORS:
        ids_of_names = {}
    twice = named_twice([*ids, *(topic.topic_id for topic in ids_of_names.values())])
    names_twice = named_twice(names) | {topic.name for topic in ids_of_names.values() if topic.topic_id in twice}
    return {topic for topic in doomed if topic.name in names_twice or topic.topic_id in twice}


async def _delete(doomed: _Doomed, context: RequestContext) -> Topic:
    """Raises one of ADMINISTRATION_ERRORS."""
    topics = context.parts.topics
    if doomed.name is not None and doomed.topic_id is not None:
        raise Refused(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if doomed.name is not None:
        return await topics.delete(doomed.name)
    if doomed.topic_id is None:
        raise Refused(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    try:
        return await topics.delete_by_id(doomed.topic_id)
    except UnknownTopic as error:
        raise Refused(ErrorCode.unknown_topic_id, str(error)) from error


def _result(doomed: _Doomed, code: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(name=doomed.name, topic_id=doomed.topic_id, error_code=code, error_message=message)


API = Api(key=20, name="DeleteTopics", versions=range(1, 7), handle=handle)
