"""The bound on the HTTP side's connections, with a real listener: what idle, slow and busy clients cost the
others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from agent.http.server import HttpServer
from agent.kafka.transport.listener import bound_socket
from tests.support.waiting import until

MOST = 8
SPARE = 32


class Served:
    """A listener of an application that answers some requests late."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: Callable[[], int] = lambda: 0
        self.released = asyncio.Event()
        self.waiting = 0
        self.opened: list[asyncio.StreamWriter] = []

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/live")
        @app.get("/ready")
        @app.get("/v1/quick")
        async def quick() -> dict[str, bool]:
            return {"answered": True}

        @app.get("/v1/late")
        async def late() -> dict[str, bool]:
            self.waiting += 1
            await self.released.wait()
            return {"answered": True}

        @app.post("/v1/body")
        async def body(request: Request) -> dict[str, int]:
            return {"bytes": len(await request.body())}

        @app.get("/v1/long")
        async def long() -> Response:
            async def pieces() -> AsyncIterator[bytes]:
                while True:
                    yield bytes(1 << 20)
                    await asyncio.sleep(0)  # else a client that left is not noticed

            return StreamingResponse(pieces())

        return app

    async def open(self, sends: bytes = b"", host: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))
        writer.write(sends)
        self.opened.append(writer)
        return reader

    async def status(self, path: str) -> int:
        async with httpx.AsyncClient(timeout=30) as client:
            return (await client.get(f"http://127.0.0.1:{self.port}{path}")).status_code


@asynccontextmanager
async def serving(idle_timeout_s: float = 600.0) -> AsyncIterator[Served]:
    served = Served()
    with bound_socket("127.0.0.1", 0) as bound:
        served.port = bound.getsockname()[1]
        server = HttpServer(
            served.app(), bound, max_connections=MOST, idle_timeout_s=idle_timeout_s, shutdown_timeout_s=1.0
        )
        served.connections = lambda: server.connections
        await server.start()
        try:
            yield served
        finally:
            served.released.set()
            for writer in served.opened:
                writer.close()
            await server.stop()


async def hung_up(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(30):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


async def test_idle_connections_of_one_host_keep_no_request_out() -> None:
    async with serving() as served:
        idle = [await served.open(b"GET /v1/quick HTTP/1.1\r\n" * (number % 2)) for number in range(5 * MOST)]

        codes = [await served.status(path) for path in ("/live", "/ready", "/v1/quick")]

        assert codes == [200, 200, 200]
        assert all([await hung_up(one) for one in idle[: 4 * MOST]])


async def test_a_host_with_one_idle_connection_keeps_it_while_another_opens_many() -> None:
    async with serving() as served:
        quiet = await served.open(host="127.0.0.2")

        for _ in range(3 * MOST):
            await served.open()
        served.opened[0].write(b"GET /v1/quick HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")

        assert (await quiet.readline()).split()[1] == b"200"


async def test_while_all_connections_are_busy_only_the_health_checks_are_answered() -> None:
    async with serving() as served:
        busy = [await served.open(b"GET /v1/late HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(MOST)]
        await until(lambda: served.waiting == MOST)

        codes = [await served.status(path) for path in ("/live", "/ready", "/v1/quick")]

        assert codes == [200, 200, 503]
        served.released.set()
        assert [(await one.readline()).split()[1] for one in busy] == [b"200"] * MOST
        assert await served.status("/v1/quick") == 200


async def test_requests_whose_clients_left_count_until_they_are_answered() -> None:
    async with serving() as served:
        for _ in range(MOST + SPARE):
            await served.open(b"GET /v1/late HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: served.waiting == MOST)
        for writer in served.opened:
            writer.close()
        await until(lambda: served.connections() == 0)

        codes = [await served.status(path) for path in ("/live", "/ready", "/v1/quick")]

        assert codes == [200, 200, 503]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/quick HTTP/1.1\r\n",
        b"POST /v1/body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx",
        b"GET /v1/long HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["nothing", "half-a-header", "half-a-body", "no-read"],
)
async def test_a_client_that_does_not_go_on_is_disconnected(sent: bytes) -> None:
    async with serving(idle_timeout_s=0.3) as served:
        await served.open(sent)
        await until(lambda: served.connections() == 1)

        await until(lambda: served.connections() == 0)


async def test_a_client_that_takes_a_long_answer_slowly_is_not_disconnected() -> None:
    async with serving(idle_timeout_s=0.5) as served:
        reader = await served.open(b"GET /v1/long HTTP/1.1\r\nHost: a\r\n\r\n")

        for _ in range(15):
            await asyncio.sleep(0.1)
            await reader.readexactly(4 << 20)

        assert served.connections() == 1
