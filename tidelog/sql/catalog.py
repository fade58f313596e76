"""The tables of the catalog, as one call of `tidelog sql` sees them.

An agent's catalog (`agent/http/iceberg.py`) names the snapshot, the bucket has its manifests. They are read
here without PyIceberg, whose import alone takes longer than a small question.

Promises:
- A table is one snapshot until `begin` is called: all statements of a call see the same records.
- A name that is unknown is an error that proposes the nearest.
"""

import difflib
import io
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID

from sequencer.tenants.tenant_names import is_tenant_name, local_name, prefix_of, tenant_of
from spark_source.http_login import LoginIncomplete, login_fix, login_headers
from storage.identifiers import ObjectKey, TopicId
from storage.stores.object_store import ObjectNotFound, StoreUrl
from tidelog.errors import UserError
from tidelog.sql.bucket_files import BucketFiles
from tidelog.sql.engine import NAMESPACE, NotInDuckDB, StatementFailed
from tidelog.sql.scan_filters import Bounds
from tidelog.sql.settings import SqlSettings

_NAME: Final = re.compile(r"[A-Za-z0-9._~-]+")
"""Kafka's rule for a topic's name, and the sign behind a tenant's name."""
_ROWS_PROPERTY: Final = "tidelog.rows"
_LAST_RECORDS: Final = "last-of-each-key"
"""As `spark_compaction.iceberg_table` writes them."""
_MAY_BE_ENCRYPTED: Final = "tidelog.may-be-encrypted"
"""As `agent.http.iceberg` answers it."""
_TABLES_PER_PAGE: Final = 1000
_TOPICS_PER_PAGE: Final = 1000
_DELETED: Final = 2
_BOUNDED: Final = {"partition": "<i", "offset": "<q", "timestamp": "<q"}
"""How Iceberg writes the bounds of these columns."""
_TYPES: Final = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ns": "TIMESTAMP_NS",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}
_RECORD_COLUMNS: Final = (
    (1, "partition", "INTEGER"),
    (2, "offset", "BIGINT"),
    (3, "timestamp", "TIMESTAMP WITH TIME ZONE"),
    (4, "timestamp_type", "INTEGER"),
    (5, "key", "BLOB"),
    (6, "value", "BLOB"),
    (7, "headers", 'STRUCT("key" VARCHAR, "value" BLOB)[]'),
)


@dataclass(frozen=True, slots=True)
class Column:
    field_id: int
    name: str
    type: str
    """As DuckDB names it."""
    kind: Any = None
    """As the table's metadata has it; None: it is a column of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    key: ObjectKey
    size_bytes: int
    rows: int
    bounds: Mapping[str, Bounds]
    column_bytes: Mapping[int, int]
    """By field id; empty if the manifest does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table's snapshot. A topic without history has no snapshot and no files."""

    name: str
    topic: str
    columns: tuple[Column, ...]
    snapshot_id: int | None
    files: tuple[DataFile, ...] = field(repr=False)
    has_last_records: bool = False
    """The table has the last record of each key, and the topic is still compacted by key: a tombstone is no
    record."""
    topic_id: TopicId | None = None
    may_be_encrypted: bool = False
    """Some files may need a key of the topic."""

    def ends(self) -> dict[int, int]:
        """By partition the offset after the last one in the table."""
        found: dict[int, int] = {}
        for file in self.files:
            partitions, offsets = file.bounds.get("partition"), file.bounds.get("offset")
            if partitions is None or offsets is None or partitions.low != partitions.high:
                raise StatementFailed(
                    f"{file.key} does not say which offsets it has.",
                    "--fresh needs files that `tidelog compact` wrote.",
                )
            found[partitions.low] = max(found.get(partitions.low, 0), offsets.high + 1)
        return found


class Catalog:
    def __init__(self, settings: SqlSettings, files: BucketFiles) -> None:
        self._settings = settings
        self._files = files
        self._url = settings.http_url.rstrip("/")
        try:
            self._login = login_headers(settings)
        except LoginIncomplete as incomplete:
            raise UserError(str(incomplete)) from None
        self._seen: dict[str, tuple[str, Table]] = {}
        """By lower-case name, with the ETag of the answer: unchanged tables are not read again."""
        self._current: dict[str, Table] = {}

    def begin(self) -> None:
        """A call begins: its statements see the tables as they are now."""
        self._current = {}

    def table(self, name: str, *, or_topic: bool = False) -> Table:
        """The table of this name, in any case. With `or_topic` a topic without history is an empty table.
        Raises StatementFailed and NotInDuckDB.
        """
        folded = name.lower()
        if folded not in self._current:
            self._current[folded] = self._with_policy(self._load(name, or_topic=or_topic))
        found = self._current[folded]
        if found.snapshot_id is None and not or_topic:
            raise self._no_history(found.topic)
        return found

    def names(self) -> list[str]:
        """The tables that the catalog has. A tenant's have their full names."""
        namespaces = [one[0] for one in self._get("/iceberg/v1/namespaces", {}).json()["namespaces"]]
        if NAMESPACE in namespaces:  # it has those of tenants, too
            return sorted(self._names_in(NAMESPACE))
        return sorted(prefix_of(tenant) + name for tenant in namespaces for name in self._names_in(tenant))

    def _names_in(self, namespace: str) -> list[str]:
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            page = self._get(
                f"/iceberg/v1/namespaces/{namespace}/tables",
                {"pageToken": token, "pageSize": str(_TABLES_PER_PAGE)},
            ).json()
            found += [identifier["name"] for identifier in page["identifiers"]]
            token = page.get("next-page-token")
        return found

    def has_tenant(self, name: str) -> bool:
        """True if the catalog has a namespace of this tenant."""
        if not is_tenant_name(name):
            return False
        return self._get(f"/iceberg/v1/namespaces/{name}", {}).status == HTTPStatus.OK

    def topics(self) -> list[dict[str, Any]]:
        """All topics, as an agent lists them."""
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            page = self._get("/v1/topics", {"after": after, "limit": str(_TOPICS_PER_PAGE)}).json()
            found += page["topics"]
            after = page["next"]
        return found

    def _load(self, name: str, *, or_topic: bool) -> Table:
        if not _NAME.fullmatch(name) or name in (".", ".."):
            return self._without_table(name, or_topic=or_topic)
        tenant = tenant_of(name)
        path = f"/iceberg/v1/namespaces/{tenant or NAMESPACE}/tables/{local_name(name)}"
        etag, seen = self._seen.get(name.lower(), ("", None))
        answer = self._get(path, {"snapshots": "refs"}, {"If-None-Match": etag} if seen else {})
        if answer.status == HTTPStatus.NOT_MODIFIED and seen is not None:
            return seen
        if answer.status == HTTPStatus.NOT_FOUND:
            return self._without_table(name, or_topic=or_topic)
        found = self._read(name, answer.json())
        self._seen[name.lower()] = (answer.etag, found)
        return found

    def _with_policy(self, table: Table) -> Table:
        """A topic whose policy has changed since the table was published adds a log to it."""
        if not table.has_last_records or table.snapshot_id is None:
            return table
        answer = self._get(f"/v1/topics/{quote(table.topic, safe='')}", {})
        if answer.status == HTTPStatus.NOT_FOUND:
            return table
        configs = {each["name"]: each["value"] for each in answer.json()["configs"]}
        return replace(table, has_last_records="compact" in configs["cleanup.policy"])

    def _without_table(self, name: str, *, or_topic: bool) -> Table:
        names = self.names()
        same = [each for each in names if each.lower() == name.lower() and each != name]
        if same:
            return self._load(same[0], or_topic=or_topic)
        known = {each["name"]: each for each in self.topics()}
        topics = list(known)
        topic = next((each for each in topics if each.lower() == name.lower()), None)
        if topic is None:
            raise StatementFailed(f"There is no topic '{name}'.", _nearest(name, {*names, *topics}))
        if not or_topic:
            raise self._no_history(topic)
        columns = tuple(Column(*each) for each in _RECORD_COLUMNS)
        return Table(
            name=topic,
            topic=topic,
            columns=columns,
            snapshot_id=None,
            files=(),
            has_last_records="compact" in known[topic]["config"].get("cleanup.policy", ""),
            topic_id=TopicId(UUID(known[topic]["topic_id"])),
            may_be_encrypted=known[topic]["may_be_encrypted"],
        )

    def _no_history(self, topic: str) -> StatementFailed:
        return StatementFailed(
            f"The topic '{topic}' has no history yet.",
            f"Run `tidelog history run`, or `tidelog compact {topic}` once; or read the log with --fresh.",
        )

    def _read(self, name: str, answer: Mapping[str, Any]) -> Table:
        metadata = answer["metadata"]
        columns = _columns(metadata)
        snapshot = next(
            (
                one
                for one in metadata.get("snapshots", [])
                if one["snapshot-id"] == metadata["current-snapshot-id"]
            ),
            None,
        )
        files: tuple[DataFile, ...] = ()
        if snapshot is not None:
            count = int(snapshot.get("summary", {}).get("total-data-files", 0))
            if count <= self._settings.sql_duckdb_files:
                files = self._data_files(snapshot["manifest-list"], columns)
            else:
                more = f"{name} has {count:,} files, more than TIDELOG_SQL_DUCKDB_FILES"
                if _MAY_BE_ENCRYPTED in answer["config"]:
                    raise StatementFailed(f"{more}, and its topic is encrypted.", "Raise it for this call.")
                raise NotInDuckDB(more)
        return Table(
            name=name,
            topic=self._topic_of(name, str(metadata["location"])),
            columns=columns,
            snapshot_id=None if snapshot is None else int(snapshot["snapshot-id"]),
            files=files,
            has_last_records=metadata.get("properties", {}).get(_ROWS_PROPERTY) == _LAST_RECORDS,
            topic_id=_topic_id(str(metadata["location"])),
            may_be_encrypted=_MAY_BE_ENCRYPTED in answer["config"],
        )

    def _topic_of(self, name: str, location: str) -> str:
        """A table has its topic's name, or where names differ only in case, the topic's id behind it."""
        start, _, digits = name.rpartition("__")
        topic_id = _topic_id(location)
        if not start or topic_id is None or not str(topic_id).startswith(digits):
            return name
        return next((each["name"] for each in self.topics() if each["topic_id"] == str(topic_id)), name)

    def _data_files(self, manifest_list: str, columns: Sequence[Column]) -> tuple[DataFile, ...]:
        try:
            [listed] = self._files.read_whole([self._key(manifest_list)])
            manifests = list(_entries(listed))
            if any(manifest["content"] != 0 for manifest in manifests):
                raise NotInDuckDB("the table has delete files")
            read = self._files.read_whole([self._key(each["manifest_path"]) for each in manifests])
        except ObjectNotFound as gone:
            raise StatementFailed(
                f"The table's snapshot is gone ({gone}).", "Run the statement again: there is a newer one."
            ) from None
        entries = (entry for data in read for entry in _entries(data))
        ids = {column.field_id: column.name for column in columns if column.name in _BOUNDED}
        live = (entry["data_file"] for entry in entries if entry["status"] != _DELETED)
        return tuple(self._data_file(entry, ids) for entry in live)

    def _data_file(self, entry: Mapping[str, Any], ids: Mapping[int, str]) -> DataFile:
        low, high = _by_id(entry.get("lower_bounds")), _by_id(entry.get("upper_bounds"))
        bounds = {
            name: Bounds(
                struct.unpack(_BOUNDED[name], low[number])[0], struct.unpack(_BOUNDED[name], high[number])[0]
            )
            for number, name in ids.items()
            if number in low and number in high
        }
        return DataFile(
            key=self._key(entry["file_path"]),
            size_bytes=int(entry["file_size_in_bytes"]),
            rows=int(entry["record_count"]),
            bounds=bounds,
            column_bytes=_by_id(entry.get("column_sizes")),
        )

    def _key(self, location: str) -> ObjectKey:
        root = _root(StoreUrl.parse(self._settings.store_url))
        if not location.startswith(root):
            raise UserError(
                f"The table's files are at {location}, outside of {root}.",
                "Set TIDELOG_STORE_URL as the agents have it.",
            )
        return ObjectKey(location.removeprefix(root))

    def _get(
        self, path: str, parameters: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> "_Reply":
        """An answer that is a success, 304 or 404."""
        reply = self._reply(f"{path}?{urlencode(parameters)}", headers or {})
        if reply.status in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED, HTTPStatus.NOT_FOUND):
            return reply
        raise UserError(
            f"{self._url}{path} answered {reply.status}: {_said(reply)}.", login_fix(reply.status)
        )

    def _reply(self, target: str, headers: Mapping[str, str]) -> "_Reply":
        """By the standard library: importing a client costs more than all requests of a small question."""
        url = urlsplit(self._url)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.netloc, timeout=self._settings.client_timeout_s)
        try:
            connection.request("GET", f"{url.path}{target}", headers={**headers, **self._login})
            answer = connection.getresponse()
            return _Reply(answer.status, answer.getheader("ETag", ""), answer.read())
        except (OSError, HTTPException) as error:
            raise UserError(
                f"No agent answers at {self._url} ({error or type(error).__name__}).",
                "Does one run there? If not, correct TIDELOG_HTTP_URL.",
            ) from None
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    etag: str
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise UserError("TIDELOG_HTTP_URL is not a Tidelog agent's: it answered no JSON.") from None


def _said(reply: _Reply) -> str:
    try:
        found = json.loads(reply.body)
        error = found.get("error", found)
        return str(error["message"] if isinstance(error, dict) else found.get("message", error)).rstrip(".")
    except (ValueError, KeyError, AttributeError):
        return reply.body[:200].decode(errors="replace")


def _entries(data: bytes) -> Iterator[dict[str, Any]]:
    """The records of an Avro file."""
    import fastavro

    yield from fastavro.reader(io.BytesIO(data))  # type: ignore[misc]


def _columns(metadata: Mapping[str, Any]) -> tuple[Column, ...]:
    schema = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
    return tuple(
        Column(field_id=int(each["id"]), name=each["name"], type=duckdb_type(each["type"]), kind=each["type"])
        for each in schema["fields"]
    )


def duckdb_type(kind: Any) -> str:
    """DuckDB's name of an Iceberg type. Raises NotInDuckDB for a type that it lacks."""
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            return kind.upper()
        if kind.startswith("fixed["):
            return "BLOB"
        if kind in _TYPES:
            return _TYPES[kind]
    elif kind["type"] == "struct":
        inner = ", ".join(f"{_quoted(each['name'])} {duckdb_type(each['type'])}" for each in kind["fields"])
        return f"STRUCT({inner})"
    elif kind["type"] == "list":
        return f"{duckdb_type(kind['element'])}[]"
    elif kind["type"] == "map":
        return f"MAP({duckdb_type(kind['key'])}, {duckdb_type(kind['value'])})"
    raise NotInDuckDB(f"a column has the type {json.dumps(kind)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _by_id(pairs: Iterable[Mapping[str, Any]] | None) -> dict[int, Any]:
    """Avro has no maps with numbers as keys: Iceberg writes lists of pairs."""
    return {pair["key"]: pair["value"] for pair in pairs or ()}


def _root(url: StoreUrl) -> str:
    """What the location of every object begins with (`spark_compaction.bucket.BucketAddress.location`)."""
    if url.scheme == "file":
        return f"file://{url.path.rstrip('/')}/"
    return f"s3://{url.bucket}/" + (f"{url.prefix}/" if url.prefix else "")


def _topic_id(location: str) -> TopicId | None:
    try:
        return TopicId(UUID(location.rstrip("/").rpartition("/")[2]))
    except ValueError:
        return None


def _nearest(name: str, names: Iterable[str]) -> str:
    known = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if found:
        return f"Did you mean {_spelled(known[found[0]])}?"
    near = [each for folded, each in known.items() if folded.startswith(name.lower()[:3])]
    if near:
        return f"Did you mean {_spelled(min(near))}?"
    return "`\\tables` in the shell, or `tidelog topics list`, shows those there are."


def _spelled(name: str) -> str:
    """As a statement has it: names with other signs than letters, digits and _ need quotes."""
    return name if name.replace("_", "a").isalnum() and not name[0].isdigit() else _quoted(name)
