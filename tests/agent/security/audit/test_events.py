"""The form of the audit trail's events, and their bounds."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.audited_changes import HIDDEN, shown_config
from agent.metrics import Metrics
from agent.security.audit.audit import Audit, Entry, TopicBuffer
from agent.security.audit.events import (
    LONGEST_LINE,
    NO_ERROR,
    UNKNOWN,
    Asker,
    AuditEvent,
    Event,
    Resource,
    events_of_change,
)
from agent.security.audit.settings import AuditSettings
from agent.security.line_limit import FairLineLimit

ANY_TEXT = st.text(st.characters(), max_size=2_000)


def a_topic(name: str = "orders", outcome: str = NO_ERROR, **change: str | None) -> Resource:
    return Resource(type="TOPIC", name=name, outcome=outcome, change=change)


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_a_line_is_one_json_object_of_printable_ascii_whatever_clients_send(
    principal: str, client_id: str, name: str, value: str
) -> None:
    asker = Asker(principal=f"User:{principal}", address="10.0.0.1:5", client_id=client_id)
    event = AuditEvent(
        event=Event.CHANGE, asker=asker, outcome="success", resources=[a_topic(name, **{value: value})]
    )

    line = event.as_line(0.0, "a-1", 7)

    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert (found["event"], found["agent"], found["resources"][0]["outcome"]) == ("change", 7, "NONE")


def test_the_largest_event_is_bounded_and_says_what_is_missing() -> None:
    change = {f"{number}\x00" * 1_000: "\x00" * 10_000 for number in range(100)}
    event = AuditEvent(
        event=Event.CHANGE,
        asker=Asker(principal="\x00" * 10_000, address="\x00" * 10_000, client_id="\x00" * 32_000),
        request="CreateTopics",
        outcome="success",
        resources=[Resource(type="TOPIC", name="\x00" * 10_000, change=change)] * 20,
    )

    line = event.as_line(0.0, "a-1", None)

    assert len(line) < LONGEST_LINE
    assert json.loads(line)["resources"][0]["change_left_out"] is True


def test_a_request_with_many_resources_has_several_events_and_says_what_it_leaves_out() -> None:
    events = list(events_of_change(Asker(), "DeleteTopics", [a_topic(str(n)) for n in range(1_500)]))

    assert [resource.name for event in events for resource in event.resources] == [
        str(number) for number in range(1_000)
    ]
    assert {event.resources_left_out for event in events} == {500}


def test_no_number_or_size_of_refused_resources_hides_a_change() -> None:
    refused = [
        a_topic("\u2028" * 2_000, "INVALID_CONFIG", **{f"{n}{chr(0)}" * 300: "(hidden)" for n in range(99)})
    ] * 1_500
    done = a_topic("orders", **{f"config-{n}": "1" for n in range(40)}, **{"retention.ms": "1"})

    events = list(events_of_change(Asker(), "AlterConfigs", [*refused, done]))

    assert [event.event for event in events[:2]] == [Event.CHANGE, Event.CHANGE_REFUSED]
    for event in events:
        assert len(event.as_line(0.0, "a-1", 1)) <= LONGEST_LINE
    [found] = json.loads(events[0].as_line(0.0, "a-1", 1))["resources"]
    assert found["change"]["retention.ms"] == "1"


def test_refusals_and_logins_that_fill_the_buffer_leave_room_for_changes() -> None:
    settings = AuditSettings(
        audit_topic=True,
        audit_buffer_bytes=65_536,
        audit_refusals_per_s=1_000,
        audit_refusals_of_host_per_s=1_000,
    )
    audit = Audit(settings, Metrics(), lambda: 0.0)

    for number in range(500):
        audit.logged_in(Asker(principal=f"User:{number}"), "PLAIN")
        audit.changed(Asker(), "CreateTopics", [a_topic("x" * 1_000, "INVALID_CONFIG")])
    audit.changed(Asker(), "DeleteTopics", [a_topic()])

    assert lines_of(audit)[-1]["event"] == "change"


def test_the_outcome_of_an_event_is_that_of_its_resources() -> None:
    refused, done = a_topic(outcome="INVALID_CONFIG"), a_topic()

    def outcomes(*resources: Resource) -> list[tuple[Event, str]]:
        return [(one.event, one.outcome) for one in events_of_change(Asker(), "x", resources)]

    assert outcomes() == []
    assert outcomes(done) == [(Event.CHANGE, "success")]
    assert outcomes(refused, done) == [(Event.CHANGE, "partial")]
    assert outcomes(refused) == [(Event.CHANGE_REFUSED, "failure")]
    assert outcomes(done, a_topic(outcome=UNKNOWN)) == [(Event.CHANGE, "unknown")]


def test_values_of_unknown_and_secret_configs_are_hidden() -> None:
    assert shown_config("retention.ms", "5") == "5"
    assert shown_config("retention.ms", None) is None
    assert shown_config("ssl.key.password", "hunter2") == HIDDEN
    assert shown_config("whatever", "hunter2") == HIDDEN


def test_a_full_buffer_takes_no_more_and_keeps_the_order() -> None:
    buffer = TopicBuffer(1_000)

    taken = [buffer.put(Entry(0, str(number), b"x" * 100), Event.CHANGE) for number in range(10)]

    assert taken == [True] * 3 + [False] * 7
    assert [entry.event_id for entry in buffer.first(150)] == ["0"]
    assert [entry.event_id for entry in buffer.first(1_000)] == ["0", "1", "2"]
    buffer.written(2)
    assert buffer.put(Entry(0, "later", b"x" * 100), Event.CHANGE)
    assert [entry.event_id for entry in buffer.first(1_000)] == ["2", "later"]


def lines_of(audit: Audit) -> list[dict[str, Any]]:
    assert audit.buffer is not None
    return [json.loads(entry.line) for entry in audit.buffer.first(1 << 30)]


def test_events_beyond_the_buffer_are_counted_and_said_once_there_is_room() -> None:
    metrics, settings = Metrics(), AuditSettings(audit_topic=True, audit_buffer_bytes=65_536)
    audit = Audit(settings, metrics, lambda: 0.0)
    assert audit.buffer is not None

    for number in range(1_000):
        audit.logged_in(Asker(principal=f"User:{number}"), "PLAIN")
    kept = len(audit.buffer)
    audit.report_lost()  # no room yet
    assert len(audit.buffer) == kept < 1_000
    audit.buffer.written(kept)
    audit.report_lost()
    audit.report_lost()

    assert [line.get("lost") for line in lines_of(audit)] == [{"login": 1_000 - kept}]
    assert metrics.audit_events_lost.labels("login", "buffer")._value.get() == 1_000 - kept


def test_refusals_have_their_own_bound_and_take_no_room_from_changes() -> None:
    audit = Audit(AuditSettings(audit_log=False, audit_topic=True), Metrics(), lambda: 0.0)
    denied = Resource(type="TOPIC", name="orders", outcome="DENIED")

    for number in range(500):
        asker = Asker(address=f"10.0.0.{number % 10}:1")
        audit.decided(asker, "Produce", "WRITE", denied)
        audit.changed(asker, "CreateTopics", [a_topic(outcome="INVALID_CONFIG")])
    audit.changed(Asker(), "CreateTopics", [a_topic()])
    audit.report_lost()

    events = [line["event"] for line in lines_of(audit)]
    assert {kind: events.count(kind) for kind in set(events)} == {
        "access denied": 20,
        "change refused": 20,
        "change": 1,
        "events lost": 1,
    }
    assert lines_of(audit)[-1]["lost"] == {"access denied": 480, "change refused": 480}


def test_a_mistake_in_an_event_is_counted_and_breaks_nothing() -> None:
    metrics = Metrics()
    audit = Audit(AuditSettings(), metrics, lambda: 0.0)

    with audit.guarded():
        json.loads("a mistake")

    assert metrics.audit_events_lost.labels("", "error")._value.get() == 1


def test_an_agent_without_log_and_topic_makes_no_events() -> None:
    metrics = Metrics()
    audit = Audit(AuditSettings(audit_log=False), metrics, lambda: 0.0)

    audit.logged_in(Asker(), "PLAIN")
    audit.changed(Asker(), "CreateTopics", [a_topic()])

    assert not next(iter(metrics.audit_events.collect())).samples


def kinds_from(audit: Audit, host: str) -> list[str]:
    return [line["event"] for line in lines_of(audit) if line["address"].startswith(host)]


def test_one_host_does_not_use_up_the_bound_of_others_and_all_together_have_one() -> None:
    metrics = Metrics()
    settings = AuditSettings(
        audit_topic=True, audit_refusals_per_s=20.0, audit_refusals_of_host_per_s=5.0, audit_log=False
    )
    audit = Audit(settings, metrics, lambda: 0.0)
    denied = Resource(type="TOPIC", name="private", outcome="DENIED")

    for port in range(1_000):
        audit.decided(Asker(address=f"10.0.0.1:{port}"), "Produce", "WRITE", denied)
        audit.login_failed(Asker(address="10.0.0.1", host="10.0.0.1"), "HTTP", "wrong")
    audit.decided(Asker(address="10.0.0.2:1"), "Produce", "WRITE", denied)
    audit.login_failed(Asker(address="::2", host="::2", listener="HTTP"), "HTTP", "wrong")

    assert kinds_from(audit, "10.0.0.1") == ["access denied", "login failed"] * 5
    assert kinds_from(audit, "10.0.0.2") == ["access denied"]
    assert kinds_from(audit, "::2") == ["login failed"]

    for number in range(50):
        audit.decided(Asker(address=f"10.1.0.{number}:1"), "Produce", "WRITE", denied)

    assert len(kinds_from(audit, "10.1.0.")) == 20 - 6
    lost = metrics.registry.get_sample_value(
        "tidelog_audit_events_lost_total", {"event": "access denied", "because": "rate"}
    )
    assert lost == 995 + 50 - 14


def test_a_host_that_is_silent_gets_its_part_again() -> None:
    times_s = [0.0]
    settings = AuditSettings(audit_topic=True, audit_refusals_of_host_per_s=1.0, audit_log=False)
    audit = Audit(settings, Metrics(), lambda: times_s[-1])

    for now_s in (0.0, 0.1, 0.2, 1.3):
        times_s.append(now_s)
        audit.login_failed(Asker(address="10.0.0.1:1"), "PLAIN", "wrong")

    assert kinds_from(audit, "10.0.0.1") == ["login failed"] * 2


def test_the_hosts_that_are_remembered_are_bounded() -> None:
    limit = FairLineLimit(1e9, 1.0, lambda: 0.0)

    taken = [limit.take(f"host-{number % 1_500}") for number in range(3_000)]

    assert len(limit) == 1_000
    assert None not in taken, "a host that was forgotten begins again"
