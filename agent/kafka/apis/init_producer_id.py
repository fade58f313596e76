"""Kafka API 22, InitProducerId, v0-v5 (KIP-98; KIP-360: a producer that names its id and epoch gets the next
epoch).

Refused: a transactional id, with a code that clients take as final.
"""

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from agent.error_codes import TRANSACTIONS_REFUSED_CODE
from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesSequencer
from sequencer.database.database import SequencerUnavailable
from storage.identifiers import NO_PRODUCER_ID
from storage.identifiers import ProducerId as LogProducerId


async def handle(
    request: InitProducerIdRequest, context: RequestContext[UsesSequencer]
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return _refused(TRANSACTIONS_REFUSED_CODE)
    producer_id = LogProducerId(request.producer_id)
    producer_epoch = request.producer_epoch
    if (producer_id < 0) != (producer_epoch < 0):
        return _refused(ErrorCode.invalid_request)
    try:
        identity = await context.parts.sequencer.producers.initialize(producer_id, producer_epoch)
    except SequencerUnavailable:
        return _refused(ErrorCode.coordinator_not_available)
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        producer_id=ProducerId(identity.producer_id),
        producer_epoch=i16(identity.producer_epoch),
    )


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        producer_id=ProducerId(NO_PRODUCER_ID),
        producer_epoch=i16(-1),
    )
