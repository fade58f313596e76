"""Who may use which route of the HTTP side (docs/security.md#http).

Promises:
- With authentication, a request is answered only if its route has an entry in `CHECKS`, and only once its
  user is known. Nothing of its body is read before.
- A user of a tenant gets answers of the routes in `FOR_TENANTS` alone. Their handlers know its tenant.
- A topic that the user may not describe looks like one that does not exist.
- Without authentication nothing is checked.

`Access` checks what the path names. Handlers check what a body names, or filter what they list, by
`is_allowed` and `require`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.security.acls.authorizer import Authorizer, Rights
from agent.security.audit.audit import Audit
from agent.security.audit.events import NO_ERROR, UNKNOWN, Asker, Resource
from agent.security.logins.http_logins import HttpLogins, TooManyFailures
from agent.security.principal import ANONYMOUS
from agent.security.sasl.steps import CannotCheck, SaslRefused
from sequencer.database.database import CommitOutcomeUnknown
from sequencer.security.acl import CLUSTER_NAME, Operation, ResourceType

_CATALOG: Final = "/iceberg/"
_rights: ContextVar[tuple[Rights, Audit, str] | None] = ContextVar("http_rights", default=None)
"""Of the request that is being answered: the user's rights, and the name of the route. None: everything."""


class AccessDenied(Exception):
    """The user may not do this. The message says which ACL is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCheck:
    operation: Operation
    resource_type: ResourceType
    of_path: str | None = None
    """The path's parameter that names the resource. None: the handler checks it, or it is the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """`logins` returns None while the agent has not reached its database."""

    logins: Callable[[], HttpLogins | None]
    authorizer: Callable[[], Authorizer | None]
    audit: Audit
    has_tls: bool
    allows_plaintext: bool
    open_metrics: bool


def _topic(operation: Operation, of_path: str | None = None) -> RouteCheck:
    return RouteCheck(operation=operation, resource_type=ResourceType.TOPIC, of_path=of_path)


_DESCRIBE_CLUSTER: Final = RouteCheck(operation=Operation.DESCRIBE, resource_type=ResourceType.CLUSTER)
_CREATE_ANY: Final = RouteCheck(operation=Operation.CREATE, resource_type=ResourceType.CLUSTER)
_WRITE_TRANSACTION: Final = RouteCheck(operation=Operation.WRITE, resource_type=ResourceType.TRANSACTIONAL_ID)
_READ_TABLE: Final = (_topic(Operation.DESCRIBE), _topic(Operation.READ))
_TABLE: Final = "/iceberg/v1/namespaces/{namespace}/tables/{table}"
OPEN: Final = frozenset({"/live", "/ready", "/iceberg/v1/oauth/tokens"})
"""Routes for everybody. `/metrics` is one of them if a setting says so."""

CHECKS: Final[Mapping[tuple[str, str], tuple[RouteCheck, ...]]] = MappingProxyType(
    {
        ("GET", "/"): (),
        ("GET", "/v1/openapi.json"): (),
        ("HEAD", "/v1/openapi.json"): (),
        ("GET", "/live"): (),
        ("GET", "/ready"): (),
        ("GET", "/metrics"): (_DESCRIBE_CLUSTER,),
        ("GET", "/v1/topics"): (_topic(Operation.DESCRIBE),),
        ("POST", "/v1/topics"): (_CREATE_ANY, _topic(Operation.CREATE)),
        ("GET", "/v1/topics/{name}"): (_topic(Operation.DESCRIBE, "name"),),
        ("PATCH", "/v1/topics/{name}"): (
            _topic(Operation.DESCRIBE, "name"),
            _topic(Operation.ALTER),
            _topic(Operation.ALTER_CONFIGS),
        ),
        ("DELETE", "/v1/topics/{name}"): (_topic(Operation.DELETE, "name"),),
        ("GET", "/v1/topics/{name}/coordinates"): (_topic(Operation.READ, "name"),),
        ("POST", "/v1/sinks/commit"): (_WRITE_TRANSACTION,),
        ("POST", "/v1/sinks/abort"): (_WRITE_TRANSACTION,),
        ("GET", "/v1/cluster"): (_DESCRIBE_CLUSTER,),
        ("GET", "/v1/clients"): (_DESCRIBE_CLUSTER,),
        ("POST", "/iceberg/v1/oauth/tokens"): (),
        ("GET", "/iceberg/v1/config"): (),
        ("GET", "/iceberg/v1/namespaces"): (),
        ("GET", "/iceberg/v1/namespaces/{namespace}"): (),
        ("HEAD", "/iceberg/v1/namespaces/{namespace}"): (),
        ("GET", "/iceberg/v1/namespaces/{namespace}/tables"): (_topic(Operation.DESCRIBE),),
        ("GET", _TABLE): _READ_TABLE,
        ("HEAD", _TABLE): _READ_TABLE,
        ("GET", f"{_TABLE}/credentials"): _READ_TABLE,
        ("POST", f"{_TABLE}/metrics"): (),
        **{(method, "/iceberg/v1/{refused:path}"): () for method in ("GET", "HEAD", "POST", "PUT", "DELETE")},
    }
)
"""By method and path. Empty: every user may use the route."""

FOR_TENANTS: Final = frozenset(
    {
        ("GET", "/iceberg/v1/config"),
        ("GET", "/iceberg/v1/namespaces"),
        ("GET", "/iceberg/v1/namespaces/{namespace}"),
        ("HEAD", "/iceberg/v1/namespaces/{namespace}"),
        ("GET", "/iceberg/v1/namespaces/{namespace}/tables"),
        ("GET", _TABLE),
        ("HEAD", _TABLE),
        ("GET", f"{_TABLE}/credentials"),
        ("POST", f"{_TABLE}/metrics"),
        *((method, "/iceberg/v1/{refused:path}") for method in ("GET", "HEAD", "POST", "PUT", "DELETE")),
    }
)
"""All other routes have names of the cluster."""


def tenant_of_user() -> str | None:
    """Returns the tenant of the request's user. None: it is of none."""
    found = _rights.get()
    return None if found is None else found[0].tenant


def is_operator() -> bool:
    """Returns whether the request's user may do everything, with all tenants too."""
    found = _rights.get()
    return found is None or found[0].is_unrestricted


def is_allowed(operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """Returns whether the request's user may do this. Nothing is logged: it is a filter, or one of several
    ways.
    """
    found = _rights.get()
    return found is None or found[0].allows(operation, resource_type, name)


def require(operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Raises AccessDenied, and logs it."""
    found = _rights.get()
    if found is None or found[0].allows(operation, resource_type, name):
        return
    rights, audit, route = found
    resource = Resource(type=resource_type.name, name=name, outcome="DENIED")
    audit.decided(_asker_of(rights), route, operation.name, resource)
    # A name has bytes of the client's choice: JSON escapes them.
    raise AccessDenied(
        f"{rights.principal} may not {operation.name} {resource_type.name} {json.dumps(name[:249])}: an "
        "administrator can allow it with kafka-acls."
    )


def _asker_of(rights: Rights) -> Asker:
    return Asker(principal=str(rights.principal), address=rights.host, host=rights.host, listener="HTTP")


@contextmanager
def audited(
    audit: Audit, request: Request, route: str, name: str, change: Mapping[str, str | None]
) -> Iterator[None]:
    """Around a change of a topic: notes what came of it. What is not an error of the domain may have been
    made.
    """
    host = "" if request.client is None else request.client.host
    found = _rights.get()
    anonymous = Asker(principal=str(ANONYMOUS), address=host, host=host, listener="HTTP")
    asker = anonymous if found is None else _asker_of(found[0])
    outcome = UNKNOWN
    try:
        yield
        outcome = NO_ERROR
    except Exception as error:
        if not isinstance(error, CommitOutcomeUnknown):
            outcome = type(error).__name__
        raise
    finally:
        audit.changed(asker, route, [Resource(type="TOPIC", name=name, outcome=outcome, change=change)])


class Access:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, access: HttpAccess, routes: list[BaseRoute]) -> None:
        self._app = app
        self._access = access
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path in OPEN or (path == "/metrics" and self._access.open_metrics):
            refusal = None if path != "/iceberg/v1/oauth/tokens" else self.plaintext_refusal(scope)
            await (refusal or self._app)(scope, receive, send)
            return
        found = await self._rights_of(scope)
        authorizer = self._access.authorizer()
        if isinstance(found, Response) or authorizer is None:
            answer = found if isinstance(found, Response) else _away(path)
            await answer(scope, receive, send)
            return
        reset = _rights.set((found, self._access.audit, "http"))
        try:
            refusal = self._refusal(scope, found)
            await (refusal or self._app)(scope, receive, send)
        finally:
            _rights.reset(reset)

    def plaintext_refusal(self, scope: Scope) -> Response | None:
        """Returns an answer if passwords would be readable on the way."""
        access = self._access
        if access.has_tls or access.allows_plaintext or _is_loopback(_host_of(scope)):
            return None
        message = (
            "Users log in over TLS: set TIDELOG_HTTP_TLS, or TIDELOG_HTTP_PLAINTEXT_LOGINS=true behind a "
            "proxy that has it."
        )
        return refused(scope["path"], 403, message)

    async def _rights_of(self, scope: Scope) -> Rights | Response:
        path, host = scope["path"], _host_of(scope)
        refusal = self.plaintext_refusal(scope)
        if refusal is not None:
            return refusal
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return refused(path, 401, "Log in: send a user and password (Basic) or a token (Bearer).")
        logins = self._access.logins()
        if logins is None:
            return _away(path)
        try:
            return await logins.rights(given[0], host)
        except SaslRefused:
            return refused(path, 401, "The login failed: check user and password, or the token.")
        except TooManyFailures:
            return refused(
                path, 429, "Too many logins of this user or host failed. Try again in some seconds."
            )
        except CannotCheck:
            return _away(path)

    def _refusal(self, scope: Scope, rights: Rights) -> Response | None:
        """Returns the answer to a request whose path names what the user may not use."""
        for route in self._routes:
            match, child = route.matches(scope)
            if match is not Match.FULL:
                continue
            template: Any = getattr(route, "path", "")
            checks = CHECKS.get((scope["method"], template))
            if checks is None:
                return refused(scope["path"], 403, "Nobody may use this route.")
            if rights.tenant is not None and (scope["method"], template) not in FOR_TENANTS:
                return refused(scope["path"], 403, "Users of a tenant may use the Iceberg catalog alone.")
            _rights.set((rights, self._access.audit, f"{scope['method']} {template}"))
            try:
                for check in checks:
                    self._check(check, child.get("path_params", {}))
            except AccessDenied as denied:
                return refused(scope["path"], 403, str(denied))
            except _Hidden as hidden:
                return JSONResponse({"error": "unknown_topic", "message": str(hidden)}, status_code=404)
            return None
        return None

    def _check(self, check: RouteCheck, parameters: Mapping[str, Any]) -> None:
        if check == _DESCRIBE_CLUSTER:
            require(check.operation, check.resource_type, CLUSTER_NAME)
        elif check.of_path is not None:
            name = parameters[check.of_path]
            if not is_allowed(Operation.DESCRIBE, check.resource_type, name):
                raise _Hidden(f"There is no topic '{name}'.")
            require(check.operation, check.resource_type, name)


class _Hidden(Exception):
    """The user may not know whether the topic exists."""


_HEADERS: Final[Mapping[int, dict[str, str]]] = MappingProxyType(
    {
        401: {"WWW-Authenticate": 'Basic realm="tidelog", Bearer realm="tidelog"'},
        429: {"Retry-After": "1"},
        503: {"Retry-After": "1"},
    }
)


def refused(path: str, status: int, message: str) -> JSONResponse:
    """Makes an error response, in the catalog's own form for its paths."""
    word, kind = {
        401: ("unauthenticated", "NotAuthorizedException"),
        403: ("access_denied", "ForbiddenException"),
        429: ("too_many_failures", "ServiceUnavailableException"),
        503: ("sequencer_unavailable", "ServiceUnavailableException"),
    }[status]
    headers = _HEADERS.get(status)
    content: dict[str, Any] = {"error": word, "message": message}
    if path.startswith(_CATALOG):
        content = {"error": {"message": message, "type": kind, "code": status}}
    return JSONResponse(content, status_code=status, headers=headers)


def _away(path: str) -> JSONResponse:
    return refused(path, 503, "Logins cannot be checked now; /ready says why.")


def _host_of(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
