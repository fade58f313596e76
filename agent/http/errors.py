"""Every HTTP error is JSON with an `error` (a word for programs) and a `message` (a sentence for people)."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent.http.access import AccessDenied, refused
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.tenants.tenant_limits import TenantLimitReached
from sequencer.topics.topic_config import InvalidConfig
from sequencer.topics.topics import InvalidPartitionCount, InvalidTopicName, TopicExists, UnknownTopic

_DOMAIN: dict[type[Exception], tuple[int, str]] = {
    TopicExists: (409, "topic_exists"),
    UnknownTopic: (404, "unknown_topic"),
    InvalidTopicName: (400, "invalid_topic_name"),
    InvalidPartitionCount: (400, "invalid_partition_count"),
    InvalidConfig: (400, "invalid_config"),
    TenantLimitReached: (409, "tenant_limit_reached"),
    SequencerUnavailable: (503, "sequencer_unavailable"),
    CommitOutcomeUnknown: (503, "outcome_unknown"),
}


class InvalidRequest(Exception):
    """The request asks for something impossible. The message says what is possible."""


def install_error_handlers(app: FastAPI) -> None:
    """Maps the domain's errors, and the framework's own, to that form."""
    for kind, (status, word) in _DOMAIN.items():
        app.add_exception_handler(kind, _handler(status, word))
    app.add_exception_handler(AccessDenied, _denied)
    app.add_exception_handler(InvalidRequest, _handler(400, "invalid_request"))
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _invalid)


def problem(status: int, word: str, message: str, **more: Any) -> JSONResponse:
    """Makes an error response."""
    return JSONResponse({"error": word, "message": message, **more}, status_code=status)


def _handler(status: int, word: str) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def handle(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - FastAPI passes it
        return problem(status, word, str(error) or word.replace("_", " "))

    return handle


async def _denied(request: Request, error: Exception) -> JSONResponse:
    return refused(request.url.path, 403, str(error))


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    word = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(
        {"error": word, "message": message}, status_code=error.status_code, headers=error.headers
    )


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["loc"] == ("body",) and "json" not in request.headers.get("content-type", ""):
        return problem(
            400, "invalid_request", "Send a JSON object, with the header Content-Type: application/json."
        )
    where = ".".join(str(part) for part in first["loc"])
    return problem(400, "invalid_request", f"{where}: {first['msg']}")
