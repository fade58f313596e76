"""An agent in the test's own loop, over a real Postgres and a real store, and a client's hand-made bytes."""

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from kafka.record import MemoryRecordsBuilder
from kio.index import load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32
from prometheus_client import generate_latest
from pydantic import SecretStr

from agent.app import App
from agent.groups.settings import GroupSettings
from agent.quotas.settings import QuotaSettings
from agent.security.acls.settings import AuthorizationSettings
from agent.security.audit.settings import AuditSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.settings import AgentSettings
from agent.tenants.settings import TenantSettings
from cache_ring.settings import CacheRingSettings
from sequencer.client import SequencerSettings
from storage.encryption.settings import EncryptionSettings
from storage.stores.object_store import StoreSettings
from tests.agent.read_path.wire import request
from tests.support.settings import all_settings

_stores = itertools.count(1)

RING = CacheRingSettings(membership_lease_s=60.0, membership_renew_s=0.2, membership_margin_s=0.5)
DEFAULTS = all_settings()


def a_memory_store() -> str:
    """Returns the URL of a new store."""
    return f"memory://agent-{next(_stores)}"


def _the_store_of(database_url: str) -> str:
    """Agents of one database have one store."""
    return f"memory://{urlsplit(database_url).path.strip('/')}"


@dataclass(kw_only=True)
class Running:
    """`stop` drains and waits until the agent has ended."""

    app: App
    stopping: asyncio.Event
    task: asyncio.Task[None]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.app.kafka_port}"

    def metric(self, name: str, **labels: str) -> float:
        return self.app.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def agents_seen(self) -> int:
        """The agents in its view of the ring, including itself."""
        membership = self.app._membership()
        return 0 if membership is None else len(membership.ring.agents)

    def exposition(self) -> str:
        return generate_latest(self.app.metrics.registry).decode()

    async def stop(self) -> None:
        self.stopping.set()
        await asyncio.wait_for(asyncio.shield(self.task), 60)


@asynccontextmanager
async def running(
    database_url: str,
    store_url: str | None = None,
    *,
    wait_started: bool = True,
    store_settings: StoreSettings = DEFAULTS.store,
    sequencer_settings: SequencerSettings = DEFAULTS.sequencer,
    ring_settings: CacheRingSettings = RING,
    group_settings: GroupSettings = DEFAULTS.groups,
    listener_settings: ListenerSettings = DEFAULTS.listeners,
    sasl_settings: SaslSettings = DEFAULTS.sasl,
    authorization: AuthorizationSettings = DEFAULTS.authorization,
    quotas: QuotaSettings = DEFAULTS.quotas,
    encryption: EncryptionSettings = DEFAULTS.encryption,
    tenant_settings: TenantSettings = DEFAULTS.tenants,
    audit: AuditSettings = DEFAULTS.audit,
    **settings: Any,
) -> AsyncIterator[Running]:
    if sasl_settings.mechanisms and listener_settings is DEFAULTS.listeners:
        listener_settings = ListenerSettings(security_protocol="SASL_PLAINTEXT")
    store_url = store_url or _the_store_of(database_url)
    given = {"kafka_port": 0, "http_port": 0, "linger_ms": 20, "drain_timeout_s": 10, **settings}
    app = App(
        all_settings(
            agent=AgentSettings(database_url=SecretStr(database_url), store_url=store_url, **given),
            store=store_settings,
            sequencer=sequencer_settings,
            ring=ring_settings,
            groups=group_settings,
            listeners=listener_settings,
            sasl=sasl_settings,
            authorization=authorization,
            quotas=quotas,
            encryption=encryption,
            tenants=tenant_settings,
            audit=audit,
        )
    )
    stopping = asyncio.Event()
    task = asyncio.create_task(app.run(stopping))
    try:
        if wait_started:
            started = asyncio.create_task(app.started.wait())
            await asyncio.wait({started, task}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert started.done(), "the agent did not start"
        yield Running(app=app, stopping=stopping, task=task)
    finally:
        stopping.set()
        await asyncio.wait_for(task, 60)


async def until_answered(condition: Callable[[], Awaitable[object]], timeout_s: float = 20.0) -> None:
    """Asks again and again until the answer is true. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - the state is a server's, which sets no event
            await asyncio.sleep(0.05)


class Wire:
    """One connection of a client that writes and reads whatever the test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_ids = itertools.count(1)

    @classmethod
    async def connect(cls, port: int) -> "Wire":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, payload: Any, client_id: str | None = "test") -> tuple[int, Any]:
        """Sends a request without waiting. Returns what `receive` needs to read its answer."""
        header_class = HeaderV2 if payload.__flexible__ else HeaderV1
        correlation_id = next(self._correlation_ids)
        header = header_class(
            request_api_key=payload.__api_key__,
            request_api_version=payload.__version__,
            correlation_id=i32(correlation_id),
            client_id=client_id,
        )
        buffer = BytesIO()
        entity_writer(header_class)(buffer, header)
        entity_writer(type(payload))(buffer, payload)
        body = buffer.getvalue()
        self.writer.write(len(body).to_bytes(4, "big") + body)
        await self.writer.drain()
        return correlation_id, load_response_schema(payload.__api_key__, payload.__version__)

    async def receive(self, sent: tuple[int, Any]) -> Any:
        """Returns the next answer, which must be the one to `sent`."""
        correlation_id, schema = sent
        frame = await self.receive_frame()
        assert struct.unpack_from(">i", frame)[0] == correlation_id, "an answer is out of order"
        response, _ = entity_reader(schema)(frame, 5 if schema.__header_schema__.__flexible__ else 4)
        return response

    async def receive_frame(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def ask(self, payload: Any, client_id: str | None = "test") -> Any:
        return await self.receive(await self.send(payload, client_id))

    async def is_closed_by_agent(self) -> bool:
        """True if the agent hangs up without a further byte."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Hangs up as a machine that is switched off and on again: the other side notices at once."""
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.writer.transport.abort()


def a_batch(
    *values: bytes,
    compression: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    producer: tuple[int, int, int] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> bytes:
    """Returns a record batch. `producer` is (producer id, epoch, base sequence). Without `keys` no record has
    one."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 24)
    if producer is not None:
        builder.set_producer_state(*producer, False)
    for key, value in zip(keys or [None] * len(values), values, strict=True):
        builder.append(timestamp=timestamp_ms, key=key, value=value)
    builder.close()
    return bytes(builder.buffer())


def a_produce(
    topic: str,
    partitions: dict[int, bytes | None],
    *,
    version: int = 9,
    acks: int = -1,
    timeout_s: float = 20.0,
    **values: Any,
) -> Any:
    asked = [{"index": index, "records": records} for index, records in partitions.items()]
    return request(
        0,
        version,
        transactional_id=values.pop("transactional_id", None),
        acks=acks,
        timeout=timedelta(seconds=timeout_s),
        topic_data=[{"name": topic, "topic_id": values.pop("topic_id", None), "partition_data": asked}],
    )


def partitions_of(response: Any) -> Sequence[Any]:
    """Returns the partitions of a produce response that names one topic."""
    return response.responses[0].partition_responses  # type: ignore[no-any-return]


def a_metadata(*names: str, version: int = 9, create: bool = True) -> Any:
    topics = [{"name": name, "topic_id": None} for name in names]
    return request(
        3,
        version,
        topics=topics,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )
