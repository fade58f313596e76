"""The agent's HTTP side: `/` (an overview), `/live`, `/ready`, `/metrics`, `/v1/...`, and the given routers.

`/live` says only that the event loop runs, because a restart would not bring a database back. `/ready` says
whether to send traffic.

A request body above the bound is answered 413 and never held in memory.
"""

import json
from functools import partial
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.http.access import Access
from agent.http.catalog_tokens import token_router
from agent.http.cluster_api import ClientsApi, ClusterApi
from agent.http.coordinates_api import CoordinatesApi
from agent.http.errors import install_error_handlers, problem
from agent.http.metrics_text import MetricsText
from agent.http.parts import HttpParts
from agent.http.readiness import Readinesses
from agent.http.sinks_api import SinksApi
from agent.http.topics_api import TopicsApi


class BodyLimit:
    """ASGI middleware. Counts bytes as they come, because Content-Length may be absent or wrong."""

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
            # To the application, a body that is too large looks like a client that went away: it drops what
            # it has read.
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


def create_http_app(parts: HttpParts) -> FastAPI:
    """Serves as soon as it is made. Routes that need the database answer 503 until it is reached."""
    app = FastAPI(title="Tidelog agent", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.add_middleware(BodyLimit, max_bytes=parts.max_body_bytes)
    install_error_handlers(app)
    rendered = MetricsText(partial(generate_latest, parts.registry))
    readiness = Readinesses(parts.checks, timeout_s=parts.check_timeout_s, cache_s=parts.check_cache_s)

    @app.get("/", tags=["health"])
    async def index() -> dict[str, Any]:
        return {"tidelog": f"an agent in zone {parts.zone}", "described_at": "/v1/openapi.json"}

    @app.get("/live", tags=["health"])
    async def live() -> dict[str, Any]:
        return {"live": True}

    @app.get("/ready", tags=["health"])
    async def ready() -> JSONResponse:
        found = await readiness.current()
        if found.is_ready:
            return JSONResponse({"ready": True})
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.failures.items())
        return problem(503, "not_ready", reasons, ready=False, checks=found.failures)

    @app.get("/metrics", tags=["health"])
    async def metrics() -> Response:
        text = rendered.kept()
        if text is None:
            if parts.before_metrics is not None:
                await parts.before_metrics()
            text = rendered.kept() or rendered.new()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    own = [route for route in app.routes if isinstance(route, Route)]
    routers = (
        TopicsApi(parts).router(),
        CoordinatesApi(parts).router(),
        SinksApi(parts).router(),
        ClusterApi(parts).router(),
        ClientsApi(parts).router(),
        *(() if parts.access is None else (token_router(parts.access.logins),)),
        *parts.routers,
    )
    for router in routers:
        app.include_router(router)
    app.state.routes = [*own, *(route for router in routers for route in router.routes)]
    if parts.access is not None:
        # Added last, so it comes first: a stranger's body is not even counted.
        app.add_middleware(Access, access=parts.access, routes=app.state.routes)
    return app
