"""Kafka API 72, PushTelemetry, v0 (KIP-714): takes OpenTelemetry metrics of clients and shows them in
`/metrics`.

Refused: a client that pushes too often (THROTTLING_QUOTA_EXCEEDED), for another subscription
(UNKNOWN_SUBSCRIPTION_ID), more than TIDELOG_TELEMETRY_MAX_BYTES before or after decompression
(TELEMETRY_TOO_LARGE), bytes that are not MetricsData (INVALID_RECORD), a push after the client's last one or
without an id (INVALID_REQUEST).
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.push_telemetry.v0.request import PushTelemetryRequest
from kio.schema.push_telemetry.v0.response import PushTelemetryResponse

from agent.error_codes import telemetry_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesTelemetry
from agent.telemetry.instances import Push
from storage.batches.record_batch import Compression

_COMPRESSIONS: Final = frozenset(int(compression) for compression in Compression)


async def handle(
    request: PushTelemetryRequest, context: RequestContext[UsesTelemetry]
) -> PushTelemetryResponse:
    push = Push(
        instance_id=request.client_instance_id,
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        is_known_compression=request.compression_type in _COMPRESSIONS,
        size_bytes=len(request.metrics),
    )
    fault = await context.parts.telemetry.push(
        push, request.compression_type, request.metrics, context.client_id
    )
    return PushTelemetryResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none if fault is None else telemetry_code(fault)
    )
