"""Settings are read once, from one value, and reach every part of a running agent."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from sequencer.settings import SequencerSettings
from storage.settings import Settings
from storage.stores.object_store import StoreSettings
from tidelog.configuration_page import PARTS
from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.process.settings import ClientSettings, variable_of

NOT_A_DATABASE = b"R\x00\x00\x00\x08\x00\x00\x00\x63"
"""An authentication that no client knows: it ends the connection."""


def test_an_option_wins_over_its_variable_and_a_variable_over_the_default() -> None:
    given = Environment({"TIDELOG_LINGER_MS": "5", "tidelog_default_partitions": "7"})

    agent = given.with_options({"linger_ms": 9.5, "auto_create_topics": False}).read(AgentSettings)

    assert (agent.linger_ms, agent.default_partitions, agent.auto_create_topics) == (9.5, 7, False)
    assert agent.segment_size_bytes == AgentSettings().segment_size_bytes
    assert agent.model_fields_set == {"linger_ms", "default_partitions", "auto_create_topics"}


@pytest.mark.parametrize("written", ["TIDELOG_LINGER_MS", "tidelog_linger_ms", "Tidelog_Linger_Ms"])
def test_an_option_wins_however_its_variable_is_written(written: str) -> None:
    for variables in ({written: "5"}, {"TIDELOG_LINGER_MS": "4", written: "5"}):
        assert Environment(variables).with_options({"linger_ms": 9}).read(AgentSettings).linger_ms == 9


@pytest.mark.parametrize(
    ("model", "variables", "told"),
    [
        (AgentSettings, {"TIDELOG_LINGER_MS": "soon"}, r"^TIDELOG_LINGER_MS: Input should be a valid number"),
        (AgentSettings, {"TIDELOG_ONE_ADDRESS": "here"}, r"^TIDELOG_ONE_ADDRESS: 'here' is not host:port\."),
        (
            CacheRingSettings,
            {"TIDELOG_MEMBERSHIP_LEASE_S": "1"},
            r"^TIDELOG_MEMBERSHIP_LEASE_S \(1.0\) must be longer than TIDELOG_MEMBERSHIP_RENEW_S",
        ),
        (
            StoreSettings,
            {"TIDELOG_S3_ACCESS_KEY": "a"},
            r"^set both TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY",
        ),
        (SequencerSettings, {"TIDELOG_DATABASE_POOL_SIZE": "1"}, r"^TIDELOG_DATABASE_POOL_SIZE: "),
    ],
)
def test_what_is_wrong_is_named_by_its_variable(
    model: type[Settings], variables: dict[str, str], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        Environment(variables).read(model)


def test_no_secret_is_shown() -> None:
    environment = Environment({"TIDELOG_DATABASE_URL": "postgresql://u:secret@h/d"})

    assert "secret" not in f"{environment!r}{environment.read(ClientSettings)!r}"


@pytest.mark.parametrize("model", [model for _, model in PARTS], ids=lambda model: model.__name__)
def test_making_settings_reads_no_variable(model: type[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    before = model()
    for name in model.model_fields:
        monkeypatch.setenv(variable_of(name), "7")

    assert model() == before
    assert model().model_fields_set == set()


# --- a real agent


@contextmanager
def started(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`tidelog agent` with options."""
    command = [sys.executable, "-m", "tidelog", "agent", "--kafka-port", "0", "--http-port", "0", *options]
    agent = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        yield agent
    finally:
        agent.kill()
        agent.communicate(timeout=60)


@pytest.mark.parametrize("role", ["kafka", "jobs"])
def test_an_option_reaches_the_database_connections_of_every_role(role: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        url = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/x?sslmode=disable&gssencmode=disable"
        options = (
            "--database-url",
            url,
            "--store-url",
            "memory://x",
            "--database-statement-timeout-ms",
            "7777",
        )
        with started(tmp_path, "--roles", role, *options):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                asked = connection.recv(4096)
                connection.sendall(NOT_A_DATABASE)

    assert b"-c statement_timeout=7777 " in asked


@pytest.mark.parametrize("role", ["kafka", "jobs"])
def test_an_option_reaches_the_store_of_every_role(role: str, database_url: str, tmp_path: Path) -> None:
    store = (
        "--store-url",
        "s3://bucket?endpoint=http://127.0.0.1:1",
        "--s3-access-key",
        "a",
        "--s3-secret-key",
        "b",
    )
    bounds = ("--s3-attempts", "2", "--s3-retry-base-s", "0.01", "--s3-call-timeout-s", "7.75")
    with started(tmp_path, "--roles", role, "--database-url", database_url, *store, *bounds) as agent:
        assert agent.stderr is not None
        said = next(line for line in agent.stderr if " wait" in line)

    assert re.search(r"cannot reach the object store .* after 2 attempts or 7\.75 s", said), said
