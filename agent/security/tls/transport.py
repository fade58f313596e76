"""TLS over a connection of the event loop, with bounded memory: a protocol of the raw transport, and the
transport of the application's protocol.

The loops' own TLS (asyncio's and uvloop's `sslproto`) hands everything that is written to the raw transport
at once, and calls `pause_writing` only for what it could not hand over. A client that does not read would
keep a whole answer in memory that its connection believes to be sent. Each of their connections also keeps
the largest buffers that it ever needed.

Promises:
- The application's protocol sees what it would see of a plain connection: `pause_writing` while bytes wait in
  user space, half-closed clients that still get their answers, one `connection_lost`.
- No byte reaches the application's protocol before the handshake is over.
- Beyond what the application wrote, a connection holds at most `_RECORDS_AT_ONCE` records that go out. Of
  what came in, it holds what one read brings, and OpenSSL's part of a record or of a handshake message
  (100 KiB at most).
- While the application reads nothing, the socket is not read.

The owner bounds the time that a handshake takes, and the number of handshakes at once (`tls_acceptor.py`).
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

from agent.security.tls.contexts import ASKED_NAME
from agent.security.tls.failure import HandshakeFailed, failure_of

_RECORD_BYTES: Final = 16_384
"""The most plain bytes of one TLS record."""
_RECORDS_AT_ONCE: Final = 4
"""What goes out in one call of the kernel."""
_RECEIVE_BYTES: Final = 4 * _RECORD_BYTES
_UNSENT_CONTROL_BYTES: Final = 65_536
"""Answers to messages of the protocol itself, such as key updates, that a client may leave unread."""


class HandshakeOwner(Protocol):
    """Hears of a handshake: `began`, then either `secured` or `failed`, once."""

    def began(self, connection: "TlsTransport") -> None: ...

    def secured(self, connection: "TlsTransport") -> asyncio.BaseProtocol:
        """Returns the protocol of the application. Raises HandshakeFailed to refuse the other side."""
        ...

    def failed(self, connection: "TlsTransport", failure: HandshakeFailed) -> None: ...


def receive_buffer() -> memoryview:
    """Returns what all connections of one event loop may receive into: one callback of the loop fills it, the
    next takes the bytes out.
    """
    return memoryview(bytearray(_RECEIVE_BYTES))


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """Give it to the event loop as a protocol."""

    def __init__(
        self,
        context: ssl.SSLContext,
        owner: HandshakeOwner,
        received: memoryview,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        super().__init__()
        self._owner = owner
        self._received = received
        self._has_failed = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        self._raw: asyncio.Transport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        """None during the handshake."""
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._is_raw_writable = True
        self._is_app_paused = False
        """True if the application was asked to pause its writing."""
        self._is_reading = True
        self._is_reading_now = False
        self._has_eof = False
        self._is_closing = False
        self._is_lost = False

    # --- the raw transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._owner.began(self)
        self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        # OpenSSL's buffers in memory never shrink, so they get little at a time.
        for start in range(0, nbytes, _RECORD_BYTES):
            self._incoming.write(self._received[start : min(nbytes, start + _RECORD_BYTES)])
            if self._protocol is None:
                self._shake_hands()
            else:
                self._deliver()

    def eof_received(self) -> bool:
        self._incoming.write_eof()
        self._has_eof = True
        if self._protocol is None:
            self._fail(HandshakeFailed("hung_up", "the client hung up during the handshake"))
            return False
        self._deliver()
        return not self._is_closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = self._is_closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._outgoing.read()
        if self._protocol is None:
            self._fail(HandshakeFailed("hung_up", "the client hung up during the handshake"))
        else:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_raw_writable = False

    def resume_writing(self) -> None:
        self._is_raw_writable = True
        self._send()
        self._control_application()

    # --- handshake

    def give_up(self, reason: str, message: str) -> None:
        """Ends a handshake that takes too long, or whose place others need."""
        self._fail(HandshakeFailed(reason, message))
        self.abort()

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the other side proved to own, as DER."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def asked_name(self) -> str | None:
        """The server's name that the client asked for (SNI)."""
        return getattr(self._tls, ASKED_NAME, None)

    def _shake_hands(self) -> None:
        if self._is_closing or self._raw is None:
            return
        try:
            self._tls.do_handshake()
            self._protocol = self._owner.secured(self)
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._refuse(failure_of(error))
            return
        except HandshakeFailed as failure:
            self._refuse(failure)
            return
        self._send()
        self._protocol.connection_made(self)
        self._deliver()

    def _refuse(self, failure: HandshakeFailed) -> None:
        self._send()  # the alert says why
        self._fail(failure)
        if self._raw is not None:
            self._raw.close()

    def _fail(self, failure: HandshakeFailed) -> None:
        self._is_closing = True
        if not self._has_failed:
            self._has_failed = True
            self._owner.failed(self, failure)

    # --- receiving

    def _deliver(self) -> None:
        """Gives the application what it has received, as long as it reads."""
        if self._is_reading_now:
            return  # the application resumed its reading within one of its callbacks
        self._is_reading_now = True
        try:
            while self._may_deliver() and (self._incoming.pending or self._tls.pending()):
                if not self._deliver_record():
                    break
            if self._has_eof and self._may_deliver():
                self._end_of_file()
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except ssl.SSLError:
            self.abort()  # a record that is forged, broken or cut off
        finally:
            self._is_reading_now = False
        self._send()

    def _may_deliver(self) -> bool:
        return self._is_reading and not self._is_closing

    def _deliver_record(self) -> bool:
        """Returns False at the end of what the other side sends."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = cast(memoryview, protocol.get_buffer(-1))
            received = self._tls.read(len(buffer), buffer)
            if received:
                protocol.buffer_updated(cast(int, received))
        else:
            received = self._tls.read(_RECORD_BYTES)
            if received:
                cast(asyncio.Protocol, protocol).data_received(received)
        if not received:
            self._has_eof = True
        if self._outgoing.pending > _UNSENT_CONTROL_BYTES:
            self.abort()
        return bool(received)

    def _end_of_file(self) -> None:
        self._is_reading = False
        keep_open = cast(asyncio.Protocol, self._protocol).eof_received()
        if not keep_open:
            self.close()

    # --- sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._is_closing:
            return
        for data in list_of_data:
            view = memoryview(data)
            if view.nbytes:
                self._backlog.append(view.cast("B"))
                self._backlog_bytes += view.nbytes
        self._send()
        self._control_application()

    def _send(self) -> None:
        """Encrypts and sends slice by slice, until the raw transport keeps bytes back."""
        if self._raw is None or self._is_lost:
            return
        try:
            while self._is_raw_writable and (self._backlog or self._outgoing.pending):
                encrypted = [self._outgoing.read()] if self._outgoing.pending else []
                while self._backlog and len(encrypted) < _RECORDS_AT_ONCE:
                    self._encrypt(self._next_piece())
                    encrypted.append(self._outgoing.read())
                self._raw.writelines(encrypted)
        except ssl.SSLError:
            self.abort()

    def _next_piece(self) -> memoryview | bytes:
        """Takes what fits one record from the backlog. Joins small pieces."""
        first = self._backlog[0]
        if len(first) > _RECORD_BYTES:
            self._backlog[0] = first[_RECORD_BYTES:]
            return first[:_RECORD_BYTES]
        pieces, size_bytes = [self._backlog.popleft()], len(first)
        while self._backlog and size_bytes + len(self._backlog[0]) <= _RECORD_BYTES:
            size_bytes += len(self._backlog[0])
            pieces.append(self._backlog.popleft())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _encrypt(self, piece: memoryview | bytes) -> None:
        """A client may have asked for small records, which take the piece bit by bit."""
        self._backlog_bytes -= len(piece)
        written = self._tls.write(cast(bytes, piece))
        while written < len(piece):
            written += self._tls.write(cast(bytes, piece[written:]))

    def _control_application(self) -> None:
        """Asks the application to pause while bytes wait in user space, or to go on."""
        if self._protocol is None or self._is_lost:
            return
        waits = bool(self._backlog) or not self._is_raw_writable
        if waits != self._is_app_paused:
            self._is_app_paused = waits
            if waits:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()
        if self._is_closing and not waits:
            self._hang_up()

    # --- the application's transport

    def close(self) -> None:
        """Sends what was written, then hangs up."""
        if not self._is_closing:
            self._is_closing = True
            if self._raw is not None and not self._is_lost:
                self._raw.pause_reading()
            if not self._backlog and self._is_raw_writable:
                self._hang_up()

    def _hang_up(self) -> None:
        if self._raw is None or self._raw.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # the other side's farewell is not waited for
            self._tls.unwrap()
        self._raw.write(self._outgoing.read())
        self._raw.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False
        if self._raw is not None and not self._is_lost:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._is_reading or self._is_closing or self._raw is None:
            return
        self._is_reading = True
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Delivers what came before the pause. Then reads on, if the application did not pause again."""
        if self._may_deliver():
            self._deliver()
        if self._may_deliver() and self._raw is not None:
            self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._may_deliver()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        unsent_bytes = self._backlog_bytes + self._outgoing.pending
        return unsent_bytes if self._raw is None else unsent_bytes + self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":  # uvicorn and asyncio's streams ask for it
            return self._tls.context
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "the application asks after the handshake"
        return self._protocol

    def can_write_eof(self) -> bool:
        return False
