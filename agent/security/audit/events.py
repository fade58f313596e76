"""The events of the audit trail, and their form as a line of JSON (docs/audit.md). Pure.

Promises:
- A line is one JSON object in ASCII, without control characters: no client can forge a line or move a cursor.
- Every text, every list and the whole line are bounded. What was cut says so.
- Nothing that a config's name calls a secret is in a line, and no value of a config that Tidelog does not
  know.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from agent.client_network import network_of
from sequencer.tenants.tenant_names import tenant_of

LONGEST_NAME: Final = 1_024
"""The most characters of a resource's name: as many as an ACL's name has."""
LONGEST_TEXT: Final = 300
"""The most characters of any other text."""
MOST_RESOURCES: Final = 20
"""The most resources of one event. A request with more has several events."""
MOST_RESOURCES_OF_REQUEST: Final = 1_000
MOST_DETAILS: Final = 64
"""The most details of one resource: more than there are configs, so no change hides behind others."""
LONGEST_LINE: Final = 200_000
"""A longer line is written without the details of its resources."""
_LONGEST_DETAILS: Final = 100_000
"""Resources with more bytes are in several events, unless it is one resource."""
_LONGEST_LETTER: Final = 6
_CUT: Final = "..."
NO_ERROR: Final = "NONE"
UNKNOWN: Final = "UNKNOWN"
"""The request ended without an answer. The change may have been made."""


class Event(StrEnum):
    LOGIN = "login"
    LOGIN_FAILED = "login failed"
    DENIED = "access denied"
    ALLOWED = "access allowed"
    CHANGE = "change"
    """An administrative change, of which at least one part was made or may have been made."""
    CHANGE_REFUSED = "change refused"
    OFFSETS = "offsets altered"
    """Committed offsets were set by no member of the group: by an administrator, or by a consumer that is in
    no group.
    """
    LOST = "events lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asked, and from where."""

    principal: str = ""
    address: str = ""
    """The client's `host:port`; on the HTTP side its host."""
    listener: str = ""
    """The Kafka listener's name, `HTTP`, or `command`."""
    client_id: str = ""
    host: str = ""
    """Without a port. Empty: that of the address."""

    @property
    def budget(self) -> str:
        """Returns whose part of a bound its events take."""
        return network_of(self.host or self.address.rpartition(":")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What a request asked for, and what came of it."""

    type: str
    """`TOPIC`, `PARTITION` (its name is `topic-number`), `GROUP`, `USER`, `ACL`, ..."""
    name: str
    outcome: str = NO_ERROR
    """Kafka's name of the error. `NONE`: it was done."""
    change: Mapping[str, str | None] = field(default_factory=dict)
    """What was asked for. None: the value is deleted, or back at its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    event: Event
    asker: Asker = Asker()
    request: str = ""
    """Kafka's API, or the HTTP route, or the command."""
    outcome: str
    """`success`, `failure`, `partial` if the resources have different outcomes, or `unknown`."""
    mechanism: str = ""
    """Of a login: `PLAIN`, `SCRAM-SHA-512`, ..., `TLS`, `HTTP`."""
    operation: str = ""
    """Of a decision: the ACL operation."""
    reason: str = ""
    resources: Sequence[Resource] = ()
    resources_left_out: int = 0
    """Of the request, beyond MOST_RESOURCES_OF_REQUEST."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """How many events were lost since the last one that said so, by kind."""

    def as_line(self, at_s: float, event_id: str, agent: int | None) -> str:
        fields = self._fields(at_s, event_id, agent)
        line = json.dumps(fields, separators=(",", ":"))
        if len(line) <= LONGEST_LINE:
            return line
        for resource in fields["resources"]:
            if resource.pop("change", None) is not None:
                resource["change_left_out"] = True
        return json.dumps(fields, separators=(",", ":"))

    def _fields(self, at_s: float, event_id: str, agent: int | None) -> dict[str, Any]:
        asker, principal = self.asker, self.asker.principal
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"),
            "logger": "tidelog.audit",
            "event": self.event.value,
            "id": event_id,
            "outcome": self.outcome,
            "principal": bounded(principal, LONGEST_NAME),
            "tenant": tenant_of(principal.partition(":")[2]),
            "address": bounded(asker.address),
            "listener": bounded(asker.listener),
            "client_id": bounded(asker.client_id),
            "mechanism": self.mechanism,
            "request": bounded(self.request),
            "operation": self.operation,
            "reason": bounded(self.reason),
            "resources": [_of_resource(resource) for resource in self.resources[:MOST_RESOURCES]],
            "resources_left_out": self.resources_left_out,
            "lost": dict(self.lost),
        }
        found = {name: value for name, value in fields.items() if value}
        if agent is not None:
            found["agent"] = agent
        return found


def events_of_change(
    asker: Asker, request: str, resources: Sequence[Resource], reason: str = "", *, of_offsets: bool = False
) -> Iterator[AuditEvent]:
    """Returns the events of one request's changes: one, or several if it names many resources. What was done
    comes first, so what a client adds to be refused hides none of it.
    """
    done_first = sorted(resources, key=lambda one: one.outcome not in (NO_ERROR, UNKNOWN))
    for part in _parts(done_first[:MOST_RESOURCES_OF_REQUEST]):
        outcome = _together([resource.outcome for resource in part])
        made = Event.OFFSETS if of_offsets else Event.CHANGE
        yield AuditEvent(
            event=Event.CHANGE_REFUSED if outcome == "failure" else made,
            asker=asker,
            request=request,
            outcome=outcome,
            reason=reason,
            resources=part,
            resources_left_out=max(0, len(resources) - MOST_RESOURCES_OF_REQUEST),
        )


def _parts(resources: Sequence[Resource]) -> Iterator[Sequence[Resource]]:
    part: list[Resource] = []
    size = 0
    for resource in resources:
        more = _size(resource)
        if part and (len(part) == MOST_RESOURCES or size + more > _LONGEST_DETAILS):
            yield part
            part, size = [], 0
        part.append(resource)
        size += more
    if part:
        yield part


def _size(resource: Resource) -> int:
    """Returns how many bytes of a line it may take."""
    details = list(resource.change.items())[:MOST_DETAILS]
    letters = sum(min(len(text or ""), LONGEST_TEXT) for detail in details for text in detail)
    return _LONGEST_LETTER * (min(len(resource.name), LONGEST_NAME) + letters)


def _together(outcomes: Sequence[str]) -> str:
    if all(outcome == NO_ERROR for outcome in outcomes):
        return "success"
    if UNKNOWN in outcomes:
        return "unknown"
    return "partial" if NO_ERROR in outcomes else "failure"


def _of_resource(resource: Resource) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": resource.type,
        "name": bounded(resource.name, LONGEST_NAME),
        "outcome": resource.outcome,
    }
    if resource.change:
        names = list(resource.change)
        found["change"] = {
            bounded(name): None if (value := resource.change[name]) is None else bounded(value)
            for name in names[:MOST_DETAILS]
        }
        if len(names) > MOST_DETAILS:
            found["changes_left_out"] = len(names) - MOST_DETAILS
    return found


def bounded(text: str, most: int = LONGEST_TEXT) -> str:
    return text if len(text) <= most else text[:most] + _CUT
