"""Kafka API 18, ApiVersions, v0-v4 (KIP-35, KIP-511).

Advertises what Kafka 4 does. As in Kafka 4, Produce v0-v2 are advertised but not served: librdkafka before
2.11 looks for Produce v0 to decide whether a broker takes compressed batches (KAFKA-18659, KIP-896), and then
uses the highest version that both sides know. The connection notes the library and version that a client
names. Names that KIP-511 does not allow are refused.
"""

import re
from typing import Final

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64

from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext
from agent.kafka.served import APIS
from agent.tenants.api_names import API_NAMES

_FEATURES: Final = {"transaction.version": 2, "streams.version": 1}
"""Clients that know transaction.version 2 use it (KIP-890). streams.version 1 says that there are streams
groups (KIP-1071).
"""
_SUPPORTED: Final = tuple(
    SupportedFeatureKey(name=name, min_version=i16(0), max_version=i16(level))
    for name, level in _FEATURES.items()
)
_FINALIZED: Final = tuple(
    FinalizedFeatureKey(name=name, max_version_level=i16(level), min_version_level=i16(level))
    for name, level in _FEATURES.items()
)
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_LONGEST_NOTED: Final = 64
_FIRST_WITH_SOFTWARE: Final = 3
_RANGES: Final = tuple(
    ApiVersion(
        api_key=i16(api.key), min_version=i16(api.versions.start), max_version=i16(api.versions.stop - 1)
    )
    for api in sorted(APIS, key=lambda api: api.key)
)
_RANGES_OF_TENANTS: Final = tuple(one for one in _RANGES if one.api_key in API_NAMES)


async def handle(request: ApiVersionsRequest | None, context: RequestContext[object]) -> ApiVersionsResponse:
    code = ErrorCode.unsupported_version if request is None else _note_software(request, context)
    return ApiVersionsResponse(
        error_code=code,
        api_keys=()
        if code is ErrorCode.invalid_request
        else _RANGES
        if context.connection.tenant_name is None
        else _RANGES_OF_TENANTS,
        throttle_time=NO_THROTTLE,
        supported_features=_SUPPORTED,
        finalized_features_epoch=i64(0),
        finalized_features=_FINALIZED,
    )


def _note_software(request: ApiVersionsRequest, context: RequestContext[object]) -> ErrorCode:
    if context.api_version < _FIRST_WITH_SOFTWARE:
        return ErrorCode.none
    connection, name, version = (
        context.connection,
        request.client_software_name,
        request.client_software_version,
    )
    if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
        return ErrorCode.invalid_request
    connection.software_name, connection.software_version = name[:_LONGEST_NOTED], version[:_LONGEST_NOTED]
    return ErrorCode.none
