"""Ports of the development stack: what one stack has picked, no other picks while it runs."""

import socket

import pytest

from tidelog.devstack import ports
from tidelog.devstack.ports import is_free, picked_ports
from tidelog.errors import UserError


def test_what_is_picked_is_free_and_nobody_elses_until_the_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with picked_ports(4) as few:
        pass
    monkeypatch.setattr(ports, "_PICKED_FROM", few)

    with picked_ports(2) as first, picked_ports(2) as second:
        assert sorted(first + second) == sorted(few)
        assert all(is_free(port) for port in few)
        with pytest.raises(UserError, match="no 1 free TCP ports"), picked_ports(1):
            pass
    with picked_ports(4) as again:
        assert sorted(again) == sorted(few)


def test_a_port_that_somebody_listens_on_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    with picked_ports(2) as (taken, free):
        pass
    monkeypatch.setattr(ports, "_PICKED_FROM", [taken, free])

    with socket.create_server(("127.0.0.1", taken)), picked_ports(1) as picked:
        assert picked == [free]
