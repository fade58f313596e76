"""The agent's HTTP side: `/` (what there is), `/live`, `/ready`, `/metrics`, `/v1/...`, and the routers it is given.

`/live` says that the event loop turns, and nothing more: a restart would not bring a database back. `/ready` says
whether to send traffic.
"""

from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from agent.http.body_limit import BodyLimit
from agent.http.clients_api import ClientsApi
from agent.http.cluster_api import ClusterApi
from agent.http.errors import install_error_handlers, problem
from agent.http.parts import HttpParts
from agent.http.readiness import Readinesses
from agent.http.topics_api import TopicsApi


def create_http_app(parts: HttpParts) -> FastAPI:
    """Serves as soon as it is made; routes that need the database answer 503 until it is there."""
    app = FastAPI(title="Tidelog agent", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.add_middleware(BodyLimit, max_bytes=parts.max_body_bytes)
    install_error_handlers(app)
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
        if parts.before_metrics is not None:
            await parts.before_metrics()
        return Response(generate_latest(parts.registry), media_type=CONTENT_TYPE_LATEST)

    for router in (TopicsApi(parts).router(), ClusterApi(parts).router(), ClientsApi(parts).router(), *parts.routers):
        app.include_router(router)
    return app
