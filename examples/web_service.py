"""A web service that answers 202 when its event is in the log, and not before.

Run it: `uvicorn examples.web_service:app --port 8000`. Then: `curl -X POST localhost:8000/clicks -d '{"page":
"/"}' -H 'content-type: application/json'`.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from fastapi import FastAPI, HTTPException, Request

BOOTSTRAP = os.environ.get("TIDELOG_BOOTSTRAP", "localhost:9092")
TOPIC = "example-clicks"


@asynccontextmanager
async def with_producer(service: FastAPI) -> AsyncIterator[None]:
    """One producer for the process: it gathers the events of all requests into batches."""
    service.state.producer = Producer(
        {"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True, "linger.ms": 20}
    )
    polling = asyncio.create_task(_poll(service.state.producer))
    yield
    polling.cancel()
    await asyncio.to_thread(service.state.producer.flush, 30)


app = FastAPI(lifespan=with_producer)


@app.post("/clicks", status_code=202)
async def click(event: dict[str, Any], request: Request) -> dict[str, int]:
    """Returns where the event is: its partition and offset."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[Message] = loop.create_future()

    def tell(error: KafkaError | None, message: Message) -> None:
        if written.done():
            return
        if error is None:
            written.set_result(message)
        else:
            written.set_exception(HTTPException(503, f"the log did not take the event: {error}"))

    try:
        request.app.state.producer.produce(
            TOPIC, value=json.dumps(event), on_delivery=lambda *told: loop.call_soon_threadsafe(tell, *told)
        )
    except BufferError as full:
        raise HTTPException(503, "too many events wait for the log; try again") from full
    message = await written
    return {"partition": message.partition(), "offset": message.offset()}


async def _poll(producer: Producer) -> None:
    """Delivery reports come while someone polls."""
    while True:
        await asyncio.to_thread(producer.poll, 0.1)
