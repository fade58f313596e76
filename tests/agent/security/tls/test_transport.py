"""TLS keeps the promises of a plain connection, on asyncio's event loop and on uvloop's."""

import asyncio
import random
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from agent.security.tls.contexts import ClientAuth, TlsFiles, server_context
from agent.security.tls.failure import HandshakeFailed
from agent.security.tls.transport import TlsTransport, receive_buffer
from tests.support.certificates import Authority, Certificate
from tests.support.waiting import until

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
ANSWER_BYTES = 30_000_000
KEPT_BYTES = 262_144
"""What may be encrypted and unsent: a slice, and what is over in the raw transport."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner.run


class App(asyncio.BufferedProtocol):
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.transport: TlsTransport
        self.buffer = bytearray(5_000)
        self.received = bytearray()
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> bool:
        self.events.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.events.append("lost")


@dataclass
class Server:
    """Serves apps, and owns their handshakes."""

    context: ssl.SSLContext
    apps: list[App] = field(default_factory=list)
    failed_for: list[str] = field(default_factory=list)
    buffer: memoryview = field(default_factory=receive_buffer)
    port: int = 0

    async def __aenter__(self) -> "Server":
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            lambda: TlsTransport(self.context, self, self.buffer), "127.0.0.1", 0
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for app in self.apps:
            app.transport.abort()
        await until(lambda: all(app.events[-1:] == ["lost"] for app in self.apps))

    async def app(self) -> App:
        await until(lambda: bool(self.apps))
        return self.apps[0]

    def began(self, connection: TlsTransport) -> None: ...

    def secured(self, connection: TlsTransport) -> asyncio.BaseProtocol:
        del connection
        self.apps.append(App())
        return self.apps[-1]

    def failed(self, connection: TlsTransport, failure: HandshakeFailed) -> None:
        del connection
        self.failed_for.append(failure.reason)


def serve(certificate: Certificate) -> Server:
    files = TlsFiles(certificate=str(certificate.certificate), key=str(certificate.key))
    return Server(server_context(files, ClientAuth.NONE, "1.2"))


class Client:
    """A blocking client, for a thread: nothing in it reads ahead."""

    def __init__(self, port: int, authority: Authority, newest: ssl.TLSVersion) -> None:
        context = ssl.create_default_context(cafile=authority.file)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.maximum_version = newest
        raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.tls = context.wrap_socket(raw, server_hostname="localhost")

    def send(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self.tls.sendall(piece)

    def read(self, size_bytes: int) -> bytes:
        got = bytearray()
        while len(got) < size_bytes:
            piece = self.tls.recv(min(65_536, size_bytes - len(got)))
            assert piece, "the server hung up"
            got += piece
        return bytes(got)


Run = Callable[[Coroutine[Any, Any, Any]], Any]
VERSIONS = pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@VERSIONS
def test_every_byte_arrives_in_order_both_ways(
    run: Run, authority: Authority, certificate: Certificate, newest: ssl.TLSVersion
) -> None:
    sizes = random.Random(16)
    sent = [sizes.randbytes(sizes.choice((0, 1, 100, 5_000, 16_384, 16_385, 100_000))) for _ in range(200)]
    whole = b"".join(sent)

    async def scenario() -> None:
        async with serve(certificate) as server:
            client = await asyncio.to_thread(Client, server.port, authority, newest)
            app = await server.app()
            await asyncio.gather(
                asyncio.to_thread(client.send, sent),
                until(lambda: len(app.received) == len(whole)),
            )
            assert app.received == whole
            for start in range(0, len(sent), 7):
                app.transport.writelines(sent[start : start + 7])
            assert await asyncio.to_thread(client.read, len(whole)) == whole

    run(scenario())


@VERSIONS
def test_a_client_that_does_not_read_pauses_the_writer_and_takes_no_memory(
    run: Run, authority: Authority, certificate: Certificate, newest: ssl.TLSVersion
) -> None:
    answer = memoryview(bytes(ANSWER_BYTES))

    async def scenario() -> None:
        async with serve(certificate) as server:
            client = await asyncio.to_thread(Client, server.port, authority, newest)
            app = await server.app()
            app.transport.set_write_buffer_limits(high=2_048)
            app.transport.writelines([answer[:10], answer[10:]])

            assert app.events == ["pause"]
            tls: Any = app.transport
            assert tls._outgoing.pending + tls._raw.get_write_buffer_size() < KEPT_BYTES
            assert app.transport.get_write_buffer_size() > ANSWER_BYTES / 2
            assert await asyncio.to_thread(client.read, ANSWER_BYTES) == answer
            await until(lambda: app.events == ["pause", "resume"])

    run(scenario())


@VERSIONS
def test_what_is_written_before_a_close_arrives(
    run: Run, authority: Authority, certificate: Certificate, newest: ssl.TLSVersion
) -> None:
    async def scenario() -> None:
        async with serve(certificate) as server:
            client = await asyncio.to_thread(Client, server.port, authority, newest)
            app = await server.app()
            app.transport.write(bytes(ANSWER_BYTES))
            app.transport.close()

            assert len(await asyncio.to_thread(client.read, ANSWER_BYTES)) == ANSWER_BYTES
            assert await asyncio.to_thread(client.tls.recv, 1) == b"", "a farewell, not a cut"
            await until(lambda: app.events[-1] == "lost")
            assert app.events.count("lost") == 1

    run(scenario())


@pytest.mark.parametrize("way", ["farewell", "half-closed socket"])
def test_a_client_that_closes_its_side_still_gets_its_answer(
    run: Run, authority: Authority, certificate: Certificate, way: str
) -> None:
    async def scenario() -> None:
        async with serve(certificate) as server:
            client = await asyncio.to_thread(Client, server.port, authority, ssl.TLSVersion.TLSv1_3)
            app = await server.app()
            client.tls.sendall(b"last request")
            if way == "farewell":
                client.tls.setblocking(False)
                with pytest.raises(ssl.SSLWantReadError):
                    client.tls.unwrap()
                client.tls.setblocking(True)
            else:
                socket.socket.shutdown(client.tls, socket.SHUT_WR)  # without a farewell
            await until(lambda: "eof" in app.events)
            assert app.received == b"last request"

            app.transport.write(b"answer")
            if way == "half-closed socket":
                assert await asyncio.to_thread(client.read, 6) == b"answer"
            app.transport.close()
            await until(lambda: app.events[-1] == "lost")
            assert app.events.count("eof") == 1

    run(scenario())


def test_nothing_is_received_while_the_application_pauses(
    run: Run, authority: Authority, certificate: Certificate
) -> None:
    async def scenario() -> None:
        async with serve(certificate) as server:
            client = await asyncio.to_thread(Client, server.port, authority, ssl.TLSVersion.TLSv1_3)
            app = await server.app()
            app.transport.pause_reading()
            sending = asyncio.create_task(asyncio.to_thread(client.tls.sendall, bytes(ANSWER_BYTES)))
            await asyncio.sleep(0.3)
            tls: Any = app.transport
            assert app.received == b""
            assert tls._incoming.pending < KEPT_BYTES
            assert not sending.done()

            app.transport.resume_reading()
            await until(lambda: len(app.received) == ANSWER_BYTES)
            await sending

    run(scenario())


@pytest.mark.parametrize(
    ("size_bytes", "seen"), [(32, "lost"), (7, "eof")], ids=["a forged record", "a record that is cut off"]
)
def test_a_damaged_record_brings_no_bytes(
    run: Run, authority: Authority, certificate: Certificate, size_bytes: int, seen: str
) -> None:
    async def scenario() -> None:
        async with serve(certificate) as server:
            client = await asyncio.to_thread(Client, server.port, authority, ssl.TLSVersion.TLSv1_3)
            app = await server.app()
            raw = socket.socket(fileno=client.tls.detach())
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(size_bytes))
            raw.shutdown(socket.SHUT_WR)
            await until(lambda: app.events == [seen])
            raw.close()
            assert app.received == b""

    run(scenario())


def test_a_client_that_hangs_up_in_the_handshake_reaches_no_application(
    run: Run, certificate: Certificate
) -> None:
    async def scenario() -> None:
        async with serve(certificate) as server:
            for sent in (b"", b"\x16", b"\x16\x03\x01\x00\x10" + bytes(3)):
                with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
                    client.sendall(sent)
            await until(lambda: len(server.failed_for) == 3)
            assert server.apps == []

    run(scenario())
