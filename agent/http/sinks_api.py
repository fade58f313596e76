"""`/v1/sinks/commit` and `/v1/sinks/abort`: end all transactions of a sink's batch as one. Spark's driver
calls them for what its tasks wrote (`spark_source/sink.py`).

Promises:
- Both may be repeated. A repeated commit says that the batch was committed before.
- A batch that cannot be committed as a whole is refused with 409, and nothing of it was committed.
- A request has at most `MAX_TRANSACTIONS` transactions.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agent.http.access import require
from agent.http.errors import InvalidRequest, problem
from agent.http.parts import HttpParts
from sequencer.client import Sequencer
from sequencer.commits.coordinates import RunCoordinate
from sequencer.commits.sinks import (
    MAX_TRANSACTIONS,
    QueryBatch,
    SinkBatch,
    SinkCommitted,
    SinkFenced,
)
from sequencer.commits.transactions import ProducerOfTransactions
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Operation, ResourceType
from storage.identifiers import ProducerId

_TASK: Final = re.compile(r"[0-9]+-[0-9]+")
_OF_SINKS: Final = "tidelog-sink"
"""In the transactional ids of all sinks, so that no request ends transactions of other clients."""
_MAX_NAMED: Final = 10
"""Transactional ids that a message names."""

# No text of Postgres holds a NUL.
SinkName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00]+$")]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]


class OpenTransaction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    transactional_id: Annotated[str, StringConstraints(max_length=500)]
    producer_id: Whole
    producer_epoch: Annotated[int, Field(ge=0, lt=1 << 15)]


class Batch(BaseModel):
    """The body of both requests. `query_id` and `batch_id` say which micro-batch of which query it is.
    Without them the run commits only once.

    The transactional ids are `id_prefix` and two numbers, such as `3-0`: of a task, and of its attempt. What
    else is open under such ids is aborted once the batch is committed. `id_prefix` begins with the sink's
    name and `-tidelog-sink-`, and ends with `-`.
    """

    model_config = ConfigDict(extra="forbid")
    sink: SinkName
    run_id: Identifier
    id_prefix: Annotated[str, StringConstraints(max_length=400, pattern=r"^[^\x00]+$")]
    query_id: Identifier | None = None
    batch_id: Whole | None = None
    transactions: Annotated[list[OpenTransaction], Field(max_length=MAX_TRANSACTIONS)]


class SinksApi:
    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/sinks", tags=["sinks"])
        router.add_api_route("/commit", self.commit, methods=["POST"], response_model=None)
        router.add_api_route("/abort", self.abort, methods=["POST"])
        return router

    async def commit(self, asked: Batch) -> dict[str, Any] | JSONResponse:
        """Returns `committed`: `now` or `before`. Refused with 409: `fenced` if another run has the sink's
        name, `transactions_lost` if one of the transactions is not open any more.
        """
        found = await self._sequencer().sinks.commit(_batch_of(asked))
        if isinstance(found, SinkCommitted):
            self._announce(found.markers)
            return {"committed": "before" if found.is_repeat else "now"}
        if isinstance(found, SinkFenced):
            return problem(
                409,
                "fenced",
                f"Another writer has taken the name '{asked.sink}' (kafka.transactional.id) since. Two "
                "queries that run at the same time need two names.",
            )
        named = ", ".join(found.transactional_ids[:_MAX_NAMED])
        return problem(
            409,
            "transactions_lost",
            f"{len(found.transactional_ids)} of {len(asked.transactions)} transactions are not open any "
            f"more, so nothing was committed: {named}. They ran out of time (kafka.transaction.timeout.ms), "
            f"or another writer uses the name '{asked.sink}' (kafka.transactional.id).",
        )

    async def abort(self, asked: Batch) -> dict[str, Any]:
        """Aborts the batch's transactions, and what else is open under its prefix. What was committed stays
        committed.
        """
        self._announce(await self._sequencer().sinks.abort(_batch_of(asked)))
        return {"aborted": True}

    def _announce(self, markers: Sequence[RunCoordinate]) -> None:
        if self._parts.committed is not None:
            self._parts.committed(markers)

    def _sequencer(self) -> Sequencer:
        sequencer = self._parts.sequencer()
        if sequencer is None:
            raise SequencerUnavailable("The agent has not reached its database yet; /ready says why.")
        return sequencer


def _batch_of(asked: Batch) -> SinkBatch:
    """Raises InvalidRequest, AccessDenied."""
    # The prefix, too: what else is open under it is aborted.
    for transactional_id in (asked.id_prefix, *(each.transactional_id for each in asked.transactions)):
        require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if (asked.query_id is None) != (asked.batch_id is None):
        raise InvalidRequest("query_id and batch_id: give both or neither.")
    prefix = asked.id_prefix
    start = f"{asked.sink}-{_OF_SINKS}-"
    if not (prefix.startswith(start) and prefix.endswith("-")):
        raise InvalidRequest(f"id_prefix: begin it with '{start}', and end it with '-'.")
    for each in asked.transactions:
        own = each.transactional_id[len(prefix) :]
        if not (each.transactional_id.startswith(prefix) and _TASK.fullmatch(own)):
            raise InvalidRequest(
                f"transactional_id {each.transactional_id[:200]!r}: it must be id_prefix and two numbers, "
                f"such as '{prefix}3-0'."
            )
    query_batch = None
    if asked.query_id is not None and asked.batch_id is not None:
        query_batch = QueryBatch(query_id=asked.query_id, batch_id=asked.batch_id)
    return SinkBatch(
        sink_name=asked.sink,
        run_id=asked.run_id,
        id_prefix=prefix,
        query_batch=query_batch,
        transactions=[
            ProducerOfTransactions(
                transactional_id=each.transactional_id,
                producer_id=ProducerId(each.producer_id),
                producer_epoch=each.producer_epoch,
            )
            for each in asked.transactions
        ],
    )
