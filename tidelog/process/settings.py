"""The settings of the command line itself: where things are, and what an agent's process does.

Each part has its own settings (agent/settings.py, ...). All share the names `TIDELOG_*`.
"""

from typing import Literal

from pydantic import Field, SecretStr

from spark_source.http_login import HttpLoginSettings
from storage.settings import Settings

_PREFIX = "TIDELOG_"


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + setting.upper()


def text_of(value: object) -> str:
    """A setting's value as the text of its variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class ClientSettings(HttpLoginSettings):
    """Where the cluster is, for commands that use it."""

    database_url: SecretStr | None = None
    """The sequencer's Postgres, `postgresql://user:password@host:port/database`."""
    migrations_database_url: SecretStr | None = None
    """The same database with the role that owns its tables, for `tidelog migrate` and `tidelog recover`. By
    default they use `database_url`.
    """
    store_url: str | None = None
    """The object store: `s3://bucket/prefix?endpoint=http://host:port`, `file:///directory`."""
    bootstrap: str | None = None
    """Kafka addresses of one or more agents, `host:port,host:port`."""
    client_config_file: str | None = None
    """A file of options for commands that connect as Kafka clients, a `name=value` per line in librdkafka's
    names: `security.protocol=SSL`, `ssl.ca.location=ca.pem`.
    """
    http_url: str | None = None
    """An agent's HTTP address, `http://host:port`."""
    cluster: str = "tidelog"
    """The first part of every object key."""
    data_dir: str = ".tidelog"
    """Where `tidelog dev` keeps its data. Other commands use its stack if nothing names a cluster."""
    client_timeout_s: float = Field(default=30.0, gt=0)
    """The longest a command waits for an agent."""


class ProcessSettings(Settings):
    """What the process of `tidelog agent` does, and how it logs."""

    roles: str = Field(default="kafka,jobs", pattern=r"^(kafka|jobs)(,(kafka|jobs))*$")
    """What this process does: `kafka` serves clients, `jobs` runs retention, garbage collection and merging.
    """
    log_format: Literal["keyvalue", "json"] = "keyvalue"
    """The form of log lines on stderr."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Log lines below this level are not written."""

    @property
    def role_set(self) -> frozenset[str]:
        """The roles, split."""
        return frozenset(self.roles.split(","))
