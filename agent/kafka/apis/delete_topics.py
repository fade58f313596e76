"""Kafka API 20, DeleteTopics, v1-v6 (KIP-516: by topic id from v6 on). The name is free at once; the bytes go later."""

from dataclasses import dataclass
from typing import Any, Final

from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE, Api
from agent.kafka.context import RequestContext
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
    return DeleteTopicsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple([await _delete(topic, context) for topic in doomed]),
    )


async def _delete(doomed: _Doomed, context: RequestContext) -> DeletableTopicResult:
    topics = context.parts.topics
    name = doomed.name
    try:
        if name is None and doomed.topic_id is not None:
            found = (await topics.by_id([doomed.topic_id])).get(doomed.topic_id)
            name = None if found is None else TopicName(found.name)
        if name is None:
            return _result(doomed, ErrorCode.unknown_topic_id, "there is no topic of this id")
        deleted = await topics.delete(name)
    except ADMINISTRATION_ERRORS as error:
        return _result(doomed, administration_code(error), str(error))
    return DeletableTopicResult(
        name=name, topic_id=deleted.topic_id, error_code=ErrorCode.none, error_message=None
    )  # fmt: skip


def _result(doomed: _Doomed, code: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(name=doomed.name, topic_id=doomed.topic_id, error_code=code, error_message=message)


API = Api(key=20, name="DeleteTopics", versions=range(1, 7), handle=handle)
