"""Which cluster a command talks to: the one that its options or `TIDELOG_*` variables name, else the stack of
`tidelog dev` on this machine.

A stack's addresses are added to the command's environment. So all parts find the same cluster, because they
read their settings from it.
"""

from pathlib import Path
from urllib.parse import urlsplit

from tidelog.devstack.stack_file import read_stack_file
from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.process.settings import ClientSettings, variable_of

_NAMES_A_CLUSTER = ("database_url", "migrations_database_url", "store_url", "bootstrap", "http_url")


def find_cluster(environment: Environment) -> Environment:
    """The environment, completed from the running stack if nothing names a cluster. Raises UserError."""
    settings = environment.read(ClientSettings)
    if any(getattr(settings, name) for name in _NAMES_A_CLUSTER):
        return environment
    data_dir = Path(settings.data_dir).expanduser().resolve()
    found = read_stack_file(data_dir)
    if found is None:
        variables = ", ".join(variable_of(name) for name in _NAMES_A_CLUSTER)
        raise UserError(
            f"No cluster to talk to: no stack runs in {data_dir}, and none of {variables} is set.",
            "Start one with `tidelog dev`, go to the directory in which it runs, or set those variables.",
        )
    return environment.with_variables(found.as_environment())


def require(settings: ClientSettings, name: str) -> str:
    """The setting's value. Raises `UserError` if the cluster was named without it, or if it names no
    database.
    """
    value = getattr(settings, name)
    if not value:
        raise UserError(f"{variable_of(name)} is not set.", "This command needs it as well.")
    text = str(value.get_secret_value()) if hasattr(value, "get_secret_value") else str(value)
    if name.endswith("database_url"):
        check_database_url(text, name)
    if name == "http_url" and not _is_http(text):
        raise UserError(f"{variable_of(name)} ({text}) is no URL.", "Write it as http://host:port.")
    return text


def _is_http(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return False


def require_owner_url(settings: ClientSettings) -> str:
    """The database's URL with the role that owns its tables. Raises as `require`."""
    return require(
        settings, "migrations_database_url" if settings.migrations_database_url else "database_url"
    )


def check_database_url(url: str, name: str = "database_url") -> None:
    """Raises `UserError` if the URL cannot be read, or if part of a password would be read as the host or the
    database. The error repeats neither the URL nor the parser's message: both may hold the password.
    """
    from psycopg import ProgrammingError  # 0.1 s that a command without the database need not wait
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(url)
        is_read = (
            "@" not in f"{str(parts.get('host', ''))[1:]}{parts.get('dbname', '')}"
        )  # @name is a socket's
    except ProgrammingError:
        is_read = False
    if not is_read:
        raise UserError(
            f"{variable_of(name)} is no address of a Postgres.",
            (
                "Write it as postgresql://user:password@host:port/database, with %40 for @ and %2F for / in "
                "the password."
            ),
        )
