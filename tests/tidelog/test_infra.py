"""The container files and the pages for operators say nothing that the program does not know."""

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from pydantic import SecretStr

from agent.read_path.settings import ReadPathSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.listeners import Address, parse_addresses
from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from erasure.settings import ErasureSettings
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from spark_compaction.settings import CompactionSettings
from storage.stores.object_store import StoreSettings
from tidelog.backup.settings import BackupSettings
from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresSettings
from tidelog.process.environment import Environment
from tidelog.process.settings import ClientSettings, ProcessSettings, variable_of
from tidelog.sql.settings import SqlSettings

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
MODELS = (
    AgentSettings, ListenerSettings, MigrationSettings,
    ReadPathSettings, CacheRingSettings, HousekeeperSettings, SequencerSettings,
    CompactionSettings, ErasureSettings,
    StoreSettings,
    ClientSettings, ProcessSettings, BackupSettings, SqlSettings,
)  # fmt: skip
KNOWN = {variable_of(field) for model in MODELS for field in model.model_fields}
# Options of `tidelog dev` alone; they are not settings of an agent.
DEV_OPTIONS = {"TIDELOG_AGENTS", "TIDELOG_ZONES", "TIDELOG_STORE"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load((INFRA / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "file",
    [
        "infra/Dockerfile", "infra/compose.yaml", "README.md", "docs/backup.md", "docs/concepts.md",
        "docs/history.md", "docs/migrate-from-kafka.md",
        "docs/operate.md", "docs/quickstart.md", "docs/sizing.md", "docs/troubleshooting.md",
        "docs/tuning.md",
        "docs/upgrade.md",
    ],
)  # fmt: skip
def test_every_variable_named_is_a_setting(file: str) -> None:
    named = set(re.findall(r"\bTIDELOG_[A-Z0-9_]+", (ROOT / file).read_text()))

    assert named - KNOWN - DEV_OPTIONS == set()


def test_agents_get_settings_that_validate(compose: dict[str, Any]) -> None:
    for name in ("agent-a", "agent-b"):
        variables = compose["services"][name]["environment"].items()
        settings = Environment({variable: str(value) for variable, value in variables}).read(AgentSettings)

        assert settings.zone == name[-1]
        assert settings.advertised_peer_host == name
        assert settings.store_url.startswith("s3://")


def test_the_history_service_gets_settings_that_validate(compose: dict[str, Any]) -> None:
    service = compose["services"]["history"]
    variables = {variable: str(value) for variable, value in service["environment"].items()}

    settings = Environment(variables).read(CompactionSettings)

    assert (service["build"]["target"], service["command"]) == ("history", ["history", "run"])
    assert settings.store_url == compose["services"]["agent-a"]["environment"]["TIDELOG_STORE_URL"]
    assert settings.database_url.startswith("postgresql://")


def test_agents_wait_for_the_schema_and_the_bucket(compose: dict[str, Any]) -> None:
    for name in ("agent-a", "agent-b"):
        waits = compose["services"][name]["depends_on"]
        assert {service: wait["condition"] for service, wait in waits.items()} == {
            "migrate": "service_completed_successfully",
            "bucket": "service_completed_successfully",
        }


def test_every_folder_of_the_program_is_in_the_image() -> None:
    dockerfile = (INFRA / "Dockerfile").read_text()
    packages = re.search(r"packages = \[(.+)\]", (ROOT / "pyproject.toml").read_text())
    assert packages is not None

    copied = set(re.findall(r"^COPY (\w+) \w+$", dockerfile, flags=re.MULTILINE))

    assert copied == set(re.findall(r'"(\w+)"', packages[1]))


def test_a_container_is_given_longer_to_stop_than_an_agent_drains(compose: dict[str, Any]) -> None:
    grace_s = int(compose["services"]["agent-a"]["stop_grace_period"].removesuffix("s"))

    assert (
        grace_s
        > AgentSettings(database_url=SecretStr("postgresql://x"), store_url="memory://x").drain_timeout_s
    )


@pytest.mark.parametrize(("page", "least_rows"), [("docs/operate.md", 28), ("docs/history.md", 5)])
def test_the_defaults_on_a_page_are_the_settings_defaults(page: str, least_rows: int) -> None:
    defaults = {
        variable_of(name): str(field.default).lower()
        for model in reversed(MODELS)
        for name, field in model.model_fields.items()
    }
    rows = re.findall(r"^\| `TIDELOG_.*$", (ROOT / page).read_text(), flags=re.MULTILINE)
    wrong = []
    for row in rows:
        _, names, told, _, _ = row.split("|")
        for variable, default in zip(
            re.findall(r"TIDELOG_\w+", names), re.findall(r"`([^`]+)`", told), strict=False
        ):
            if float_or_text(default) != float_or_text(defaults[variable]):
                wrong.append((variable, default, defaults[variable]))

    assert wrong == []
    assert len(rows) >= least_rows


def float_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_every_image_is_pinned_to_a_release(compose: dict[str, Any]) -> None:
    images = {service["image"] for service in compose["services"].values() if "build" not in service}
    bases = set(re.findall(r"^FROM (\S+:\S+) AS", (INFRA / "Dockerfile").read_text(), flags=re.MULTILINE))

    assert bases, "the Dockerfile names no image"
    for image in images | bases:
        assert re.search(r":(RELEASE\.)?\d+[.-]\d+\S*$", image), f"{image} is not a release"


def test_clients_in_other_containers_have_a_listener(compose: dict[str, Any]) -> None:
    """It names agents by the hosts that peers use."""
    agents = [compose["services"][name]["environment"] for name in ("agent-a", "agent-b")]

    advertised = [parse_addresses(agent["TIDELOG_ADVERTISED_LISTENERS"]) for agent in agents]
    assert [one["INSIDE"] for one in advertised] == [Address("agent-a", 19092), Address("agent-b", 19092)]
    assert [one["OUTSIDE"] for one in advertised] == [Address("localhost", 9092), Address("localhost", 9093)]
    assert [agent["TIDELOG_ADVERTISED_PEER_HOST"] for agent in agents] == ["agent-a", "agent-b"]
    assert all(set(parse_addresses(agent["TIDELOG_LISTENERS"])) == {"INSIDE", "OUTSIDE"} for agent in agents)


def test_the_build_context_is_what_the_image_copies() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (INFRA / "Dockerfile").read_text(), flags=re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}

    assert [line for line in ignored if not line.startswith(("#", "!"))] == ["*", "**/__pycache__"]
    assert allowed == {name for names in copied for name in names.split()}


def test_the_history_image_holds_its_jars() -> None:
    stage = (INFRA / "Dockerfile").read_text().split("AS history\n")[1].split("\nFROM")[0]
    as_user = stage.split("USER tidelog\n")[1]

    assert "RUN python -m tidelog.fetch_jars\n" in as_user, "Ivy's cache is in the home of who runs it"


def test_agents_get_a_database_role_that_changes_no_table(compose: dict[str, Any], tmp_path: Path) -> None:
    services = compose["services"]
    [config] = services["postgres"]["configs"]
    migrating = services["migrate"]["environment"]
    owner_url, role = migrating["TIDELOG_MIGRATIONS_DATABASE_URL"], migrating["TIDELOG_AGENT_DATABASE_ROLE"]
    server = EmbeddedPostgres(tmp_path / "data", EmbeddedPostgresSettings(durable=False))

    def here(url: str) -> str:
        return f"postgresql://{urlsplit(url).username}@{server.url('tidelog').partition('@')[2]}"

    try:
        with psycopg.connect(server.start(), autocommit=True) as connection:
            for statement in compose["configs"][config["source"]]["content"].splitlines():
                connection.execute(statement.encode())
        asyncio.run(migrate(here(owner_url), MigrationSettings(agent_database_role=role)))

        for name in ("agent-a", "agent-b", "history"):
            environment = services[name]["environment"]
            assert owner_url not in environment.values()
            with psycopg.connect(here(environment["TIDELOG_DATABASE_URL"])) as connection:
                assert connection.execute("SELECT count(*) FROM topics").fetchone() == (0,)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("ALTER TABLE topics ADD COLUMN more integer")
    finally:
        server.stop()
