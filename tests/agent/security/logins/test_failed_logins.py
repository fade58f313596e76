"""How long failed logins wait, and how many of them are logged."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.metrics import Metrics
from agent.security.audit.audit import Audit
from agent.security.audit.settings import AuditSettings
from agent.security.logins.authentication import Authentication
from agent.security.logins.failed_logins import FailedLogins
from agent.security.sasl.settings import SaslSettings
from agent.security.sasl.steps import SaslRefused
from sequencer.client import Sequencer


def of_hosts(most_hosts: int = 100) -> FailedLogins:
    return FailedLogins(base_s=0.1, most_s=3.0, most_hosts=most_hosts)


def test_the_wait_doubles_up_to_its_bound_and_is_forgotten_after_a_minute() -> None:
    failed = of_hosts()

    assert [round(failed.delay_s("a", 0.0), 1) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0]
    assert failed.delay_s("b", 0.0) == 0.1
    assert failed.delay_s("a", 61.0) == 0.1


@given(st.lists(st.tuples(st.text(max_size=3), st.floats(0, 1e6)), max_size=60))
def test_the_wait_is_always_in_its_bounds_and_few_hosts_are_kept(failures: list[tuple[str, float]]) -> None:
    failed = of_hosts(most_hosts=5)

    for host, now_s in failures:
        assert 0.1 <= failed.delay_s(host, now_s) <= 3.0
        assert len(failed) <= 5


async def test_a_flood_of_failed_logins_leaves_few_lines_and_all_are_counted(
    sequencer: Sequencer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog")
    now_s, metrics = 0.0, Metrics()
    audit = Audit(AuditSettings(), metrics, lambda: now_s)
    authentication = Authentication(sequencer.user_credentials, SaslSettings(), metrics, lambda: now_s, audit)

    for number in range(500):
        authentication.note_http_failure(f"10.0.0.{number}", SaslRefused("wrong", "eve"))
    now_s = 1.0
    authentication.note_http_failure("10.0.1.1", SaslRefused("wrong", "eve"))
    audit.report_lost()

    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [line["event"] for line in lines] == ["login failed"] * 21 + ["events lost"]
    assert lines[-2]["address"] == "10.0.1.1"
    assert lines[-1]["lost"] == {"login failed": 480}
    assert metrics.logins.labels("HTTP", "failed")._value.get() == 501
    assert metrics.audit_events_lost.labels("login failed", "rate")._value.get() == 480
