"""Schemas by their ids, from a schema registry that speaks Confluent's REST protocol.

Only the driver asks it. Promises:
- A question ends: every attempt has a timeout, attempts and the bytes of an answer are bounded, and so is the
  time for all schemas of a job.
- A schema never changes under its id, so it is kept. The cache is bounded.
- That the registry does not have an id is its answer, and no failure. Everything else is `RegistryAway`, and
  the topic waits: no column becomes null because a registry was away.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote

import urllib3

SchemaKind = Literal["avro", "protobuf", "json-schema"]
_KINDS: Final[Mapping[str, SchemaKind]] = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json-schema"}
_LARGEST_ANSWER: Final = 4 << 20
_MOST_KEPT: Final = 2000
_MOST_REFERENCES: Final = 200
_NO_SUCH: Final = 404
_NO_SCHEMA: Final = (40401, 40402, 40403)
"""No such subject, version or schema."""
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_RETRY_S: Final = 0.2


class RegistryAway(Exception):
    """The registry did not answer, or not with a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """`references` are the texts of the schemas it refers to, by the names it uses, those first on which
    others rest. Texts of Protobuf are FileDescriptorProtos in base64.
    """

    kind: SchemaKind
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class SchemaRegistry:
    """Asked in one thread at a time."""

    def __init__(self, url: str, *, user: str, timeout_s: float, attempts: int, job_s: float) -> None:
        """`user` is NAME:PASSWORD, or empty."""
        self._urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user:
            self._headers |= urllib3.make_headers(basic_auth=user)
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._job_s = job_s
        self._http = urllib3.PoolManager(maxsize=1, retries=False)
        self._kept: OrderedDict[int, RegisteredSchema] = OrderedDict()

    def schemas(self, ids: Iterable[int]) -> dict[int, RegisteredSchema | None]:
        """Of these ids; None where there is none. Raises RegistryAway."""
        end_s = time.monotonic() + self._job_s
        try:
            return {schema_id: self._schema(schema_id, end_s) for schema_id in ids}
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryAway(f"the schema registry's answer makes no sense: {error!r}"[:500]) from error

    def _schema(self, schema_id: int, end_s: float) -> RegisteredSchema | None:
        kept = self._kept.get(schema_id)
        if kept is not None:
            self._kept.move_to_end(schema_id)
            return kept
        found = self._ask(f"/schemas/ids/{schema_id}", end_s)
        if found is None:
            return None
        kind = _KINDS.get(str(found.get("schemaType", "AVRO")))
        if kind is None:
            raise RegistryAway(
                f"schema {schema_id} is of type {str(found.get('schemaType'))[:40]}, unknown here"
            )
        if kind == "protobuf":
            found = self._ask(f"/schemas/ids/{schema_id}?format=serialized", end_s) or found
        references: dict[str, str] = {}
        self._refer(found, kind, references, end_s)
        schema = RegisteredSchema(kind=kind, text=_text(found, schema_id), references=references)
        self._kept[schema_id] = schema
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return schema

    def _refer(
        self, schema: Mapping[str, Any], kind: SchemaKind, found: dict[str, str], end_s: float
    ) -> None:
        references = schema.get("references")
        for each in references if isinstance(references, list) else ():
            name = str(each["name"])
            if name in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise RegistryAway(f"a schema has more than {_MOST_REFERENCES} references")
            path = f"/subjects/{quote(str(each['subject']), safe='')}/versions/{int(each['version'])}"
            answer = self._ask(path + ("?format=serialized" if kind == "protobuf" else ""), end_s)
            if answer is None:
                raise RegistryAway(f"the registry does not have {name}, to which a schema refers")
            found[name] = ""  # its place, should it refer to itself
            self._refer(answer, kind, found, end_s)
            del found[name]
            found[name] = _text(answer, name)

    def _ask(self, path: str, end_s: float) -> dict[str, Any] | None:
        if not self._urls:
            raise RegistryAway("no schema registry is set: set TIDELOG_SCHEMA_REGISTRY_URL")
        reason = "there was no time to ask it"
        for attempt in range(self._attempts):
            url = self._urls[attempt % len(self._urls)]
            left_s = min(self._timeout_s, end_s - time.monotonic())
            if left_s <= 0:
                break
            try:
                status, body = self._get(url + path, left_s)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if status not in _RETRIED:
                    return _answer(url + path, status, body)
                reason = f"it answered {status}"
            time.sleep(min(_RETRY_S * 2**attempt, max(0.0, end_s - time.monotonic())))
        where = ", ".join(self._urls)
        raise RegistryAway(f"the schema registry at {where} gave no answer to {path}: {reason}"[:500])

    def _get(self, url: str, timeout_s: float) -> tuple[int, bytes]:
        """An answer that comes in drops counts against the same time."""
        end_s = time.monotonic() + timeout_s
        response = self._http.request(
            "GET", url, headers=self._headers, timeout=urllib3.Timeout(total=timeout_s),
            preload_content=False, redirect=False,
        )  # fmt: skip
        try:
            body = b""
            while chunk := response.read1(64 << 10):
                body += chunk
                if len(body) > _LARGEST_ANSWER:
                    raise OSError(f"the answer is larger than {_LARGEST_ANSWER} bytes")
                if time.monotonic() > end_s:
                    raise TimeoutError("the answer did not end in time")
            return response.status, body
        finally:
            response.close()


def _answer(url: str, status: int, body: bytes) -> dict[str, Any] | None:
    """None if the registry says that it has no such schema. A 404 of anything else, as of a wrong path, is a
    failure.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if status == _NO_SUCH and isinstance(found, dict) and found.get("error_code") in _NO_SCHEMA:
        return None
    if status != 200 or not isinstance(found, dict):
        raise RegistryAway(f"{url} answered {status}: {body[:200].decode(errors='replace')}")
    return found


def _text(schema: Mapping[str, Any], name: object) -> str:
    text = schema.get("schema")
    if not isinstance(text, str):
        raise RegistryAway(f"the registry's answer for {name} has no schema")
    return text
