"""`POST /iceberg/v1/oauth/tokens`: OAuth2 client credentials (RFC 6749 4.4) for clients of the Iceberg
catalog. The client's id is a user, its secret the user's password.

A token is renewed by the same grant or, as Iceberg's Java client does, by a token exchange (RFC 8693).
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from agent.security.logins.http_logins import HttpLogins, TooManyFailures, basic_parts
from agent.security.sasl.steps import CannotCheck, SaslRefused

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_MOST_FIELDS = 20
_LONGEST_FORM: Final = 32_768
"""Strangers may send forms. A megabyte with %-signs would keep the event loop busy for 0.1 s, and 256 slow
strangers would take 256 MB.
"""


def token_router(logins: Callable[[], HttpLogins | None]) -> APIRouter:
    router = APIRouter(prefix="/iceberg/v1", tags=["iceberg"])

    @router.post("/oauth/tokens", response_model=None)
    async def tokens(request: Request) -> JSONResponse:
        return await _answer(request, logins())

    return router


async def _answer(request: Request, logins: HttpLogins | None) -> JSONResponse:
    if logins is None:
        return _error(503, "temporarily_unavailable", "Logins cannot be checked now; /ready says why.")
    host = "" if request.client is None else request.client.host
    try:
        given = bytearray()
        async for piece in request.stream():
            given += piece
            if len(given) > _LONGEST_FORM:
                return _error(400, "invalid_request", f"The form has more than {_LONGEST_FORM} bytes.")
        found = parse_qs(given.decode("ascii"), max_num_fields=_MOST_FIELDS)
    except (ClientDisconnect, ValueError):
        return _error(400, "invalid_request", "The body is no form (application/x-www-form-urlencoded).")
    form = {name: values[0] for name, values in found.items()}
    try:
        if form.get("grant_type") == "client_credentials":
            scheme, _, proof = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() == "basic":
                user, password = basic_parts(proof.encode("latin-1"), form_encoded=True)
            else:
                user, password = form.get("client_id", "").encode(), form.get("client_secret", "").encode()
            token, life_s = await logins.exchange(user, password, host)
        elif form.get("grant_type") == _EXCHANGE:
            token, life_s = await logins.refresh(form.get("subject_token", "").encode(), host)
        else:
            return _error(
                400, "unsupported_grant_type", "grant_type: client_credentials or a token exchange."
            )
    except SaslRefused:
        return _error(401, "invalid_client", "The login failed: check client_id and client_secret.")
    except TooManyFailures:
        return _error(
            429, "slow_down", "Too many logins of this user or host failed. Try again in some seconds."
        )
    except CannotCheck:
        return _error(503, "temporarily_unavailable", "Logins cannot be checked now; /ready says why.")
    content = {
        "access_token": token,
        "token_type": "bearer",
        "expires_in": life_s,
        "issued_token_type": _ACCESS_TOKEN,
        "scope": form.get("scope", "catalog")[:200],
    }
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _error(status: int, word: str, message: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": word, "error_description": message}, status_code=status, headers=headers)
