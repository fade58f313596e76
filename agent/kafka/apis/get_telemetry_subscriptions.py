"""Kafka API 71, GetTelemetrySubscriptions, v0 (KIP-714).

Every client gets the same subscription: TIDELOG_TELEMETRY_METRICS, every TIDELOG_TELEMETRY_PUSH_INTERVAL_S,
as cumulative values. Refused: a client that asks more often than it may push (THROTTLING_QUOTA_EXCEEDED).
"""

from datetime import timedelta
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.get_telemetry_subscriptions.v0.request import GetTelemetrySubscriptionsRequest
from kio.schema.get_telemetry_subscriptions.v0.response import GetTelemetrySubscriptionsResponse
from kio.static.primitive import i8, i32, i32Timedelta

from agent.error_codes import telemetry_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesTelemetry
from agent.telemetry.instances import TelemetryFault
from storage.batches.record_batch import Compression

_ACCEPTED: Final = tuple(
    i8(compression)
    for compression in (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
)
_NO_SUBSCRIPTION: Final = i32(0)


async def handle(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext[UsesTelemetry]
) -> GetTelemetrySubscriptionsResponse:
    telemetry = context.parts.telemetry
    answer = telemetry.ask(request.client_instance_id)
    if isinstance(answer, TelemetryFault):
        return _response(context, telemetry_code(answer), request.client_instance_id)
    return _response(context, ErrorCode.none, answer)


def _response(
    context: RequestContext[UsesTelemetry], code: ErrorCode, instance_id: UUID | None
) -> GetTelemetrySubscriptionsResponse:
    asked = context.parts.telemetry.subscription
    is_taken = code is ErrorCode.none and instance_id is not None
    return GetTelemetrySubscriptionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        client_instance_id=instance_id,
        subscription_id=i32(asked.id_for(instance_id)) if is_taken and instance_id else _NO_SUBSCRIPTION,
        accepted_compression_types=_ACCEPTED if is_taken else (),
        push_interval=i32Timedelta.parse(timedelta(milliseconds=round(asked.interval_s * 1000))),
        telemetry_max_bytes=i32(asked.max_bytes),
        delta_temporality=False,
        requested_metrics=asked.metrics if is_taken else (),
    )
