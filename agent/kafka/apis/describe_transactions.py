"""Kafka API 65, DescribeTransactions, v0 (KIP-664): every id is unknown, because there are no transactions
yet.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TransactionState
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TransactionalId
from kio.static.primitive import TZAware, i16, i32Timedelta

from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext

_NO_TIME: Final = i32Timedelta.parse(timedelta(0))
_NEVER: Final = TZAware.parse(datetime.fromtimestamp(0, UTC))


async def handle(
    request: DescribeTransactionsRequest, context: RequestContext[object]
) -> DescribeTransactionsResponse:
    del context
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(
            _not_found(transactional_id) for transactional_id in request.transactional_ids
        ),
    )


def _not_found(transactional_id: TransactionalId) -> TransactionState:
    return TransactionState(
        error_code=ErrorCode.transactional_id_not_found if transactional_id else ErrorCode.invalid_request,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=_NO_TIME,
        transaction_start_time=_NEVER,
        producer_id=ProducerId(-1),
        producer_epoch=i16(-1),
        topics=(),
    )
