"""A bound on request bodies: a larger one is answered 413 and never held in memory."""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware; counts bytes as they come, since Content-Length may be absent or wrong."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._refuse(send)
            return
        taken = 0
        refused = False

        async def counted_receive() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            # To the application a body that is too large is a client that went away: it drops what it has read.
            return message if taken <= self._max_bytes else {"type": "http.disconnect"}

        async def checked_send(message: Message) -> None:
            nonlocal refused
            if taken <= self._max_bytes:
                await send(message)
            elif not refused:
                refused = True
                await self._refuse(send)

        await self._app(scope, counted_receive, checked_send)

    async def _refuse(self, send: Send) -> None:
        body = json.dumps(
            {"error": "too_large", "message": f"A request body may have at most {self._max_bytes} bytes."}
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
