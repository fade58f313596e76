"""What TLS costs an agent: CPU per GB, and memory per connection (`python -m benchmarks.tls`).

Three transports serve the same client over loopback, each in a separate process on uvloop: a plain one,
the agent's TLS (`agent/security/tls/transport.py`), and the event loop's TLS. Kernel TLS is not among them:
asyncio and uvloop encrypt into memory (`ssl.MemoryBIO`), so OpenSSL never sees the socket that the kernel
would encrypt for.
"""

import asyncio
import gc
import multiprocessing
import resource
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from agent.security.tls.contexts import ClientAuth, TlsFiles, server_context
from agent.security.tls.failure import HandshakeFailed
from agent.security.tls.transport import TlsTransport, receive_buffer

_GB: Final = 1_000_000_000
_ANSWER: Final = memoryview(bytes(4_000_000))
_REQUEST: Final = bytes(1_000_000)
_CONNECTIONS: Final = 400
_UNREAD_BYTES: Final = 40_000_000
_CHUNK: Final = 1_048_576


class _Server(asyncio.BufferedProtocol):
    """Sends what a client asks for: a count of answers in eight bytes. It discards all else: eight bytes of
    zeros begin a stream.
    """

    shared = memoryview(bytearray(65_536))

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.left = 0
        self.is_paused = False
        self.is_discarding = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=2_048)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self.shared

    def buffer_updated(self, nbytes: int) -> None:
        del nbytes
        if self.is_discarding:
            return
        count = int.from_bytes(self.shared[:8], "big")
        self.is_discarding = count == 0
        self.left += count
        self._send()

    def _send(self) -> None:
        while self.left and not self.is_paused:
            self.left -= 1
            self.transport.writelines([_ANSWER[:4], _ANSWER[4:100], _ANSWER[100:]])

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._send()


class _Owner:
    def began(self, connection: TlsTransport) -> None: ...

    def secured(self, connection: TlsTransport) -> asyncio.BaseProtocol:
        del connection
        return _Server()

    def failed(self, connection: TlsTransport, failure: HandshakeFailed) -> None: ...


def _serve(way: str, files: TlsFiles, pipe: Connection) -> None:
    """Answers with (CPU seconds, resident bytes) whenever it is asked."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        context = server_context(files, ClientAuth.NONE, "1.2")
        owner, received = _Owner(), receive_buffer()
        factory: Callable[[], Any] = _Server
        if way == "agent's TLS":
            factory = lambda: TlsTransport(context, owner, received)  # noqa: E731
        server = await loop.create_server(
            factory, "127.0.0.1", 0, backlog=1_024, ssl=context if way == "loop's TLS" else None
        )
        pipe.send(server.sockets[0].getsockname()[1])
        stopped = asyncio.Event()

        def answer() -> None:
            if pipe.recv() == "stop":
                stopped.set()
                return
            gc.collect()
            used = resource.getrusage(resource.RUSAGE_SELF)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            pipe.send((used.ru_utime + used.ru_stime, pages * resource.getpagesize()))

        loop.add_reader(pipe.fileno(), answer)
        await stopped.wait()

    uvloop.run(run())


@dataclass(frozen=True, slots=True)
class _Running:
    way: str
    port: int
    pipe: Connection
    trusted: str

    def usage(self) -> tuple[float, int]:
        self.pipe.send("usage")
        cpu_s, resident_bytes = self.pipe.recv()
        return cpu_s, resident_bytes

    def connect(self) -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        if self.way == "plain":
            return raw
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.trusted)
        context.check_hostname = False
        return context.wrap_socket(raw)


def _read(connection: socket.socket, size_bytes: int) -> None:
    buffer = bytearray(_CHUNK)
    while size_bytes > 0:
        got = connection.recv_into(buffer)
        assert got, "the server hung up"
        size_bytes -= got


def _measure(server: _Running) -> None:
    _, before_unread = server.usage()
    with server.connect() as deaf:
        deaf.sendall((_UNREAD_BYTES // len(_ANSWER)).to_bytes(8, "big"))
        for _ in range(20):
            _, unread = server.usage()
    with server.connect() as connection:
        answers = _GB // len(_ANSWER)
        before, _ = server.usage()
        connection.sendall(answers.to_bytes(8, "big"))
        _read(connection, answers * len(_ANSWER))
        after, _ = server.usage()
        sent_s = after - before
        before, _ = server.usage()
        connection.sendall(bytes(8))
        for _ in range(_GB // len(_REQUEST)):
            connection.sendall(_REQUEST)
        after, _ = server.usage()
        received_s = after - before
    _, empty = server.usage()
    kept = [server.connect() for _ in range(_CONNECTIONS)]
    _, idle = server.usage()
    for connection in kept:
        connection.sendall((1).to_bytes(8, "big"))
        _read(connection, len(_ANSWER))
        connection.sendall(bytes(8))
        connection.sendall(_REQUEST)
    _, used = server.usage()
    for connection in kept:
        connection.close()
    print(
        f"{server.way:12} fetch {sent_s:5.2f} CPU s/GB, produce {received_s:5.2f} CPU s/GB; "
        f"connection idle {(idle - empty) / _CONNECTIONS / 1024:6.1f} KiB, "
        f"after use {(used - empty) / _CONNECTIONS / 1024:6.1f} KiB; "
        f"client that does not read {(unread - before_unread) / 1e6:5.1f} MB"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc",
             "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        files = TlsFiles(certificate=str(certificate), key=str(key))
        spawning = multiprocessing.get_context("spawn")
        for way in ("plain", "agent's TLS", "loop's TLS"):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_serve, args=(way, files, theirs), daemon=True)
            process.start()
            _measure(_Running(way, ours.recv(), ours, str(certificate)))
            ours.send("stop")
            process.join(20)


if __name__ == "__main__":
    main()
