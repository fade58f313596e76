"""The audit events of commands that write to Postgres themselves."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PASSWORD = "correct-horse"


def tidelog(
    database_url: str, *arguments: str, password: str = "", **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Returns the process, and the events on its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *arguments],
        env={**os.environ, "TIDELOG_DATABASE_URL": database_url, **environment},
        input=password,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def test_changes_of_users_are_events_without_the_password(database_url: str) -> None:
    add = ("users", "add", "ann", "--password-file", "-")
    added, [first] = tidelog(database_url, *add, password=PASSWORD)
    again, [refused] = tidelog(database_url, *add, password=PASSWORD)
    _, [marked] = tidelog(database_url, "users", "priority", "ann", "bulk")
    _, [removed] = tidelog(database_url, "users", "remove", "ann")
    listed, none = tidelog(database_url, "users", "list")

    assert added.returncode == listed.returncode == 0
    assert (first["event"], first["outcome"], first["request"]) == ("change", "success", "tidelog users add")
    assert first["principal"].startswith("os:")
    assert first["resources"] == [
        {
            "type": "USER",
            "name": "ann",
            "outcome": "NONE",
            "change": {"mechanism": "both", "iterations": "4096"},
        }
    ]
    assert again.returncode == 1
    assert (refused["event"], refused["reason"]) == ("change refused", "There is a user ann already.")
    assert marked["request"] == "tidelog users priority"
    assert marked["resources"][0]["change"] == {"priority": "bulk"}
    assert (removed["request"], removed["outcome"]) == ("tidelog users remove", "success")
    assert none == []
    assert PASSWORD not in added.stderr + again.stderr


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("peers", "renew-secret"), "PEER_SECRET"),
        (("tenants", "create", "acme", "--admin", "ann"), "TENANT"),
    ],
)
def test_other_changes_in_postgres_are_events(
    database_url: str, arguments: tuple[str, ...], kind: str
) -> None:
    done, [event] = tidelog(database_url, *arguments)

    assert done.returncode == 0
    assert (event["event"], event["outcome"]) == ("change", "success")
    assert event["resources"][0]["type"] == kind


def test_a_change_that_reaches_no_database_is_an_event_and_events_may_be_switched_off() -> None:
    away = "postgresql://nobody@127.0.0.1:1/none"

    done, [event] = tidelog(away, "peers", "renew-secret")
    _, silent = tidelog(away, "peers", "renew-secret", TIDELOG_AUDIT_LOG="false")

    assert done.returncode == 1
    assert event["event"] == "change refused"
    assert silent == []
