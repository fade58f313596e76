"""Audit trails for tests of the parts that write to them."""

import json
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.metrics import Metrics
from agent.security.audit.audit import Audit
from agent.security.audit.settings import AuditSettings


def an_audit(settings: AuditSettings | None = None, metrics: Metrics | None = None) -> Audit:
    return Audit(settings or AuditSettings(), metrics or Metrics(CollectorRegistry()), time.monotonic)


def events_of(caplog: pytest.LogCaptureFixture, *kinds: str) -> list[dict[str, Any]]:
    """Returns the events of these kinds in the log, or all."""
    lines = [record.getMessage() for record in caplog.records if record.name == "tidelog.audit"]
    events = [json.loads(line) for line in lines]
    return [event for event in events if not kinds or event["event"] in kinds]
