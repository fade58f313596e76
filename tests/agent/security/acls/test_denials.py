"""The log of refusals."""

import logging

import pytest

from agent.security.acls.denials import Denials
from agent.security.principal import Principal
from sequencer.security.acl import Operation, ResourceType


def test_denials_past_the_rate_are_counted_in_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tidelog")
    now_s = 0.0
    denials = Denials(2.0, lambda: now_s)
    eve = (Principal("eve"), "10.0.0.9")

    for _ in range(100):
        denials.note(*eve, "Produce", Operation.WRITE, ResourceType.TOPIC, "x" * 1_000)
    now_s = 0.5
    denials.note(*eve, "Fetch", Operation.READ, ResourceType.TOPIC, "orders")

    assert [vars(record)["left_out_before"] for record in caplog.records] == [0, 0, 98]
    last = vars(caplog.records[-1])
    assert (last["principal"], last["host"], last["request"]) == ("User:eve", "10.0.0.9", "Fetch")
    assert (last["operation"], last["resource_type"], last["resource"]) == ("READ", "TOPIC", "orders")
    assert len(vars(caplog.records[0])["resource"]) == 300
