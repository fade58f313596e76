"""The read part of the Iceberg REST catalog under `/iceberg`: namespace `topics`, one table per topic that
has history. A tenant's tables are in the namespace of the tenant, `acme.orders` for topic `acme~orders`. Its
users see that namespace alone. Operators see all, and in `topics` all tables by the topics' full names.

Spark SQL, DuckDB, Trino, Flink and PyIceberg open `topics.<name>` by this URL, without a database password
and without a copy (docs/design/history.md#the-open-catalog).

Served: config, namespaces, tables, load table, and the metrics reports that Spark sends after a scan
(accepted and dropped). Refused: every write, because only compaction writes. Errors have the catalog's own
form: clients map their `type` to exceptions.

`loadTable` answers with the metadata file that the pointer in Postgres names, so a reader sees only whole
snapshots. A client that asks for vended credentials gets keys that read this table, if the agent has an STS
(`agent/http/vended_keys.py`). No client gets the agent's keys.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from agent.http.access import is_allowed, is_operator, require, tenant_of_user
from agent.http.vended_keys import PAUSE_S, VendedKeys
from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.history.history import TABLES_PER_PAGE
from sequencer.history.history_values import HistoryTable
from sequencer.security.acl import Operation, ResourceType
from sequencer.tenants.tenant_names import is_tenant_name, prefix_of
from sequencer.topics.known_configs import ENCRYPTION
from storage.scoped_keys import NoScopedKeys, ScopedKeys
from storage.stores.object_store import ObjectNotFound, ObjectStore, StoreSettings, StoreUnavailable, StoreUrl

NAMESPACE = "topics"
_VENDED = "vended-credentials"
_MAY_BE_ENCRYPTED = "tidelog.may-be-encrypted"
"""In a table's config: columns of its files may be encrypted with a key of the topic (docs/encryption.md)."""
_NOT_KEPT = {"Cache-Control": "no-store"}
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
)


def file_io_config(store_url: str, settings: StoreSettings) -> dict[str, str]:
    """Returns how readers reach the files, without keys. Readers may override each property."""
    url = StoreUrl.parse(store_url)
    if url.scheme == "file":
        return {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    config = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.region": settings.s3_region,
        "client.region": settings.s3_region,
    }
    if url.endpoint is not None:
        config |= {"s3.endpoint": url.endpoint, "s3.path-style-access": "true"}
    if settings.s3_sse:
        config["s3.sse.type"] = "kms" if settings.s3_sse == "aws:kms" else "s3"
        if settings.s3_sse_kms_key_id is not None:
            config["s3.sse.key"] = settings.s3_sse_kms_key_id
    return config


def router(
    sequencer: Callable[[], Sequencer | None],
    store: Callable[[], ObjectStore | None],
    file_io: Mapping[str, str],
    vended: VendedKeys | None = None,
) -> APIRouter:
    """Both callables return None while the agent starts without its database or bucket. The answer is then
    503. Without `vended`, the catalog gives no keys.
    """
    catalog = _Catalog(sequencer, store, file_io, vended)
    routes = APIRouter(prefix="/iceberg/v1", tags=["iceberg"])
    routes.add_api_route("/config", catalog.config, methods=["GET"])
    routes.add_api_route("/namespaces", catalog.namespaces, methods=["GET"])
    routes.add_api_route("/namespaces/{namespace}", catalog.namespace, methods=["GET"])
    routes.add_api_route("/namespaces/{namespace}", catalog.namespace_exists, methods=["HEAD"])
    routes.add_api_route("/namespaces/{namespace}/tables", catalog.tables, methods=["GET"])
    routes.add_api_route("/namespaces/{namespace}/tables/{table}", catalog.load_table, methods=["GET"])
    routes.add_api_route("/namespaces/{namespace}/tables/{table}", catalog.table_exists, methods=["HEAD"])
    routes.add_api_route(
        "/namespaces/{namespace}/tables/{table}/credentials", catalog.credentials, methods=["GET"]
    )
    routes.add_api_route("/namespaces/{namespace}/tables/{table}/metrics", catalog.metrics, methods=["POST"])
    routes.add_api_route("/{refused:path}", catalog.refuse, methods=["GET", "HEAD", "POST", "PUT", "DELETE"])
    return routes


class _Catalog:
    def __init__(
        self,
        sequencer: Callable[[], Sequencer | None],
        store: Callable[[], ObjectStore | None],
        file_io: Mapping[str, str],
        vended: VendedKeys | None,
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._file_io = file_io
        self._vended = vended

    async def config(self) -> JSONResponse:
        return JSONResponse({"defaults": dict(self._file_io), "overrides": {}, "endpoints": _ENDPOINTS})

    async def namespaces(self, parent: str | None = None) -> JSONResponse:
        sequencer = self._sequencer()
        if sequencer is None:
            return _away("the database")
        try:
            names = await self._namespaces(sequencer)
        except SequencerUnavailable as error:
            return _away(str(error))
        if parent is not None and parent not in names:
            return _no_namespace(parent)
        found = [] if parent is not None else [[name] for name in names]
        return JSONResponse({"namespaces": found, "next-page-token": None})

    async def namespace(self, namespace: str) -> JSONResponse:
        refusal = await self._refusal_of(namespace)
        return refusal or JSONResponse({"namespace": [namespace], "properties": {}})

    async def namespace_exists(self, namespace: str) -> Response:
        refusal = await self._refusal_of(namespace)
        return Response(status_code=204 if refusal is None else refusal.status_code)

    async def _refusal_of(self, namespace: str) -> JSONResponse | None:
        """Returns None if the user sees this namespace."""
        if namespace == (tenant_of_user() or NAMESPACE):
            return None
        sequencer = self._sequencer()
        if sequencer is None:
            return _away("the database")
        try:
            return None if namespace in await self._namespaces(sequencer) else _no_namespace(namespace)
        except SequencerUnavailable as error:
            return _away(str(error))

    async def _namespaces(self, sequencer: Sequencer) -> Sequence[str]:
        """Returns those that the user sees. There are at most as many as tenants."""
        tenant = tenant_of_user()
        if tenant is not None:
            return [tenant]
        tenants = await sequencer.tenants.list() if is_operator() else ()
        return [NAMESPACE, *(one.name for one in tenants)]

    async def tables(
        self,
        namespace: str,
        page_token: Annotated[str | None, Query(alias="pageToken")] = None,
        page_size: Annotated[int, Query(alias="pageSize", ge=1)] = TABLES_PER_PAGE,
    ) -> JSONResponse:
        """Returns pages to clients that send a token (empty for the first page), and all tables to others."""
        refusal = await self._refusal_of(namespace)
        if refusal is not None:
            return refusal
        if "\0" in (page_token or ""):
            return _error(400, "BadRequestException", "pageToken is none that this catalog gave")
        sequencer = self._sequencer()
        if sequencer is None:
            return _away("the database")
        size = min(page_size, TABLES_PER_PAGE) if page_token is not None else TABLES_PER_PAGE
        found: list[HistoryTable] = []
        prefix = _prefix_in(namespace)
        after, is_last = prefix + (page_token or ""), False
        try:
            while not is_last and (page_token is None or not found):
                page = await (
                    sequencer.history.tables_of_tenant(namespace, after, size)
                    if prefix
                    else sequencer.history.tables(after, size)
                )
                found += [table for table in page if _may_describe(table)]
                is_last = len(page) < size
                after = page[-1].topic_name if page else after
        except SequencerUnavailable as error:
            return _away(str(error))
        identifiers = [
            {"namespace": [namespace], "name": table.table_name.removeprefix(prefix)} for table in found
        ]
        token = None if is_last else after.removeprefix(prefix)
        return JSONResponse({"identifiers": identifiers, "next-page-token": token})

    async def load_table(
        self,
        namespace: str,
        table: str,
        snapshots: Literal["all", "refs"] = "all",
        if_none_match: Annotated[str | None, Header()] = None,
        x_iceberg_access_delegation: Annotated[str, Header()] = "",
    ) -> Response:
        """`refs`: return only the snapshots that a branch or a tag names. The ETag covers all, also the
        keys: a reader whose copy of the table is whole but whose keys are not the newest gets an answer.
        """
        found = await self._find(namespace, table)
        if not isinstance(found, HistoryTable):
            return found
        keys = None
        if self._vended is not None and _VENDED in map(str.strip, x_iceberg_access_delegation.split(",")):
            try:
                keys = await self._vended.of(found)
            except NoScopedKeys as reason:
                return _no_keys(reason)
        config = {_MAY_BE_ENCRYPTED: "true"} if ENCRYPTION in found.config else {}
        version = f"{found.metadata_key}?{snapshots}" + ("" if keys is None else f"&{keys.access_key}")
        version += "".join(config)
        etag = f'"{sha256(version.encode()).hexdigest()[:32]}"'
        if if_none_match is not None and etag in if_none_match:
            return Response(status_code=304, headers={"ETag": etag})
        store = self._store()
        if store is None:
            return _away("the object store")
        assert found.metadata_key is not None, "a table that was found has been published"
        try:
            metadata = json.loads(bytes(await store.get(found.metadata_key)))
        except ObjectNotFound:
            return _away(f"the metadata of {table} ({found.metadata_key})")
        except StoreUnavailable as error:
            return _away(str(error))
        # The key is relative to the store's prefix. The part behind the topic's id is relative to the table's
        # location.
        location = f"{metadata['location']}/{found.metadata_key.split(f'/{found.topic_id}/', 1)[1]}"
        if snapshots == "refs":
            metadata = _with_referenced_snapshots(metadata)
        content = {"metadata-location": location, "metadata": metadata, "config": config}
        if keys is None:
            return JSONResponse(content, headers={"ETag": etag})
        given = self._given(namespace, found, keys)
        content |= {"config": given["config"] | config, "storage-credentials": [given]}
        return JSONResponse(content, headers={"ETag": etag, **_NOT_KEPT})

    async def credentials(self, namespace: str, table: str) -> Response:
        """Clients ask for newer keys here before theirs expire. Empty if this agent has no STS."""
        found = await self._find(namespace, table)
        if not isinstance(found, HistoryTable):
            return found
        if self._vended is None:
            return JSONResponse({"storage-credentials": []})
        try:
            keys = await self._vended.of(found)
        except NoScopedKeys as reason:
            return _no_keys(reason)
        return JSONResponse({"storage-credentials": [self._given(namespace, found, keys)]}, headers=_NOT_KEPT)

    def _given(self, namespace: str, table: HistoryTable, keys: ScopedKeys) -> dict[str, Any]:
        """Returns the keys, and the endpoint that they belong to: clients look for both in one place."""
        assert self._vended is not None, "it gave the keys"
        name = quote(table.table_name.removeprefix(_prefix_in(namespace)), safe="")
        config = {
            **{name: value for name, value in self._file_io.items() if name.startswith("s3.")},
            "s3.access-key-id": keys.access_key,
            "s3.secret-access-key": keys.secret_key,
            "s3.session-token": keys.session_token,
            "s3.session-token-expires-at-ms": str(int(keys.expires_at.timestamp() * 1000)),
            "client.refresh-credentials-endpoint": f"v1/namespaces/{namespace}/tables/{name}/credentials",
        }
        return {"prefix": self._vended.location_of(table), "config": config}

    async def table_exists(self, namespace: str, table: str) -> Response:
        found = await self._find(namespace, table)
        return Response(status_code=204 if isinstance(found, HistoryTable) else found.status_code)

    async def metrics(self, namespace: str, table: str) -> Response:  # noqa: ARG002 - the route's parts
        return Response(status_code=204)

    async def refuse(self, request: Request, refused: str) -> JSONResponse:
        message = (
            f"{request.method} {refused}: this catalog is read-only; `tidelog compact` and `tidelog "
            "ttl` write"
        )
        return _error(406, "UnsupportedOperationException", message)

    async def _find(self, namespace: str, table: str) -> HistoryTable | JSONResponse:
        full = _full_name(namespace, table)
        if full is None:
            # Spark first looks for `topics.flights.snapshots` as a table of namespace topics.flights. Without
            # this answer it looks no further.
            return _error(
                404,
                "NoSuchTableException",
                f"Table does not exist: {namespace.replace(chr(0x1F), '.')}.{table}",
            )
        sequencer = self._sequencer()
        if sequencer is None:
            return _away("the database")
        try:
            # No text of Postgres holds a NUL, so no table has such a name.
            found = None if "\0" in full else await sequencer.history.table(full)
        except SequencerUnavailable as error:
            return _away(str(error))
        if found is None or not _may_describe(found):
            return _error(
                404,
                "NoSuchTableException",
                f"Table does not exist: {namespace}.{table}: there is no such topic",
            )
        require(Operation.READ, ResourceType.TOPIC, found.topic_name)
        if found.metadata_key is None:
            hint = f"the topic has no history yet; run `tidelog compact {found.topic_name}`"
            return _error(404, "NoSuchTableException", f"Table does not exist: {namespace}.{table}: {hint}")
        return found


def _full_name(namespace: str, table: str) -> str | None:
    """Returns the name inside the cluster of a table that the user names. None: it sees no such namespace."""
    tenant = tenant_of_user()
    if tenant is None and namespace == NAMESPACE:
        return table
    is_seen = namespace == tenant or (tenant is None and is_operator() and is_tenant_name(namespace))
    return prefix_of(namespace) + table if is_seen else None


def _prefix_in(namespace: str) -> str:
    return "" if namespace == NAMESPACE else prefix_of(namespace)


def _may_describe(table: HistoryTable) -> bool:
    return is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, table.topic_name)


def _with_referenced_snapshots(metadata: dict[str, Any]) -> dict[str, Any]:
    named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    kept = [snapshot for snapshot in metadata.get("snapshots", []) if snapshot["snapshot-id"] in named]
    return {**metadata, "snapshots": kept}


def _no_namespace(namespace: str) -> JSONResponse:
    message = f"Namespace does not exist: {namespace.replace(chr(0x1F), '.')}"
    if tenant_of_user() is None:
        message += f"; topics are in {NAMESPACE}, and those of a tenant in one of its name"
    return _error(404, "NoSuchNamespaceException", message)


def _away(what: str) -> JSONResponse:
    return _error(503, "ServiceUnavailableException", f"not available now: {what}")


def _no_keys(reason: NoScopedKeys) -> JSONResponse:
    answer = _away(
        f"keys that read this table ({reason}). Try again, or read with your own keys and without the header "
        "X-Iceberg-Access-Delegation"
    )
    answer.headers["Retry-After"] = str(math.ceil(PAUSE_S))
    return answer


def _error(code: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, status_code=code)
