"""A TCP link to a real server. Its connections can answer in the server's place, stall or break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


def an_answer(status: str, code: str, message: str) -> bytes:
    """Returns an error as S3 sends it."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


SLOW_DOWN = an_answer("503 Slow Down", "SlowDown", "Please reduce your request rate.")
INTERNAL_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class UnreliableLink:
    """`faults` holds what happens to the next connections, in order. When it is empty, they are passed on."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults: list[bytes | None] = []
        """Bytes are the whole answer; empty bytes break the connection; None stalls it."""
        self.connections = 0
        self.url = ""
        self.stalled = asyncio.Event()
        """Set when a connection stalls, and `hung_up` when the other side has given one such up."""
        self.hung_up = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator["UnreliableLink"]:
        target = urlsplit(url)
        link = cls(str(target.hostname), int(target.port or 80))
        server = await asyncio.start_server(link._accept, "127.0.0.1", 0)
        link.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield link
        finally:
            server.close()
            for task in link._tasks:
                task.cancel()
            await asyncio.gather(*link._tasks, return_exceptions=True)

    def break_all(self) -> None:
        """Ends the open connections, so that the next request needs a new one."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if self.faults:
                await self._fail(self.faults.pop(0), reader, writer)
            else:
                await self._pass_on(reader, writer)
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _fail(
        self, fault: bytes | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if fault is None:
            self.stalled.set()
            with contextlib.suppress(OSError):
                while await reader.read(1 << 16):
                    pass
            self.hung_up.set()
        elif fault:
            writer.write(fault)
            await writer.drain()
            with contextlib.suppress(
                TimeoutError
            ):  # let a request's body arrive, so that the answer is not reset
                async with asyncio.timeout(0.05):
                    while await reader.read(1 << 16):
                        pass
        else:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, up_writer))
                both.create_task(_copy(up_reader, writer))
        except* OSError:
            pass
        finally:
            up_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
