"""Every connection to Postgres takes the URL's `sslmode` and `sslrootcert`. Needs a Postgres that was built
with OpenSSL, which the embedded one was not: that of the system, if there is one.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.database.options import is_encrypted
from sequencer.migrate import migrate
from sequencer.settings import MigrationSettings, SequencerSettings
from tests.support.certificates import Authority
from tests.support.directories import new_directory
from tests.support.waiting import wait_until
from tidelog.backup.barman import libpq_environment
from tidelog.devstack.ports import picked_ports

USER = "nobody"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def encrypted_url(authority: Authority) -> Iterator[str]:
    """A Postgres that takes encrypted connections alone, without the trust in its certificate."""
    postgres = shutil.which("postgres")
    if (
        postgres is None
        or "libssl"
        not in subprocess.run(
            ["ldd", os.path.realpath(postgres)], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    ):
        pytest.skip("the system has no Postgres with OpenSSL")
    programs = Path(os.path.realpath(postgres)).parent
    user = pwd.getpwnam(USER) if os.getuid() == 0 else None
    as_user: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
    certificate = authority.issue()
    with new_directory("encrypted-postgres") as folder, picked_ports(1) as [port]:
        data = folder / "data"
        data.mkdir(mode=0o700)
        for source, name in ((certificate.certificate, "server.crt"), (certificate.key, "server.key")):
            shutil.copy(source, folder / name)
            (folder / name).chmod(0o600)
        if user is not None:
            folder.chmod(0o711)
            for path in (data, folder / "server.crt", folder / "server.key"):
                os.chown(path, user.pw_uid, user.pw_gid)
        subprocess.run(
            [programs / "initdb", "--no-sync", "-A", "trust", "-U", "tidelog", "-D", data],
            check=True, capture_output=True, timeout=120, **as_user,
        )  # fmt: skip
        (data / "pg_hba.conf").write_text(
            "hostssl all all 127.0.0.1/32 trust\nhostssl all all ::1/128 trust\n"
        )
        options = {
            "port": port, "ssl": "on", "ssl_cert_file": folder / "server.crt",
            "ssl_key_file": folder / "server.key", "unix_socket_directories": "", "fsync": "off",
        }  # fmt: skip
        process = subprocess.Popen(
            [postgres, "-D", data, *(f"--{name}={value}" for name, value in options.items())],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user,
        )  # fmt: skip
        url = f"postgresql://tidelog@localhost:{port}/postgres"
        try:
            wait_until(lambda: answers(f"{url}?sslmode=require"))
            yield url
        finally:
            process.terminate()
            process.wait(60)


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


async def test_every_connection_is_encrypted_and_verified(encrypted_url: str, authority: Authority) -> None:
    url = f"{encrypted_url}?sslmode=verify-full&sslrootcert={authority.file}"
    await migrate(url, MigrationSettings())
    sequencer = await Sequencer.open(url, SequencerSettings())
    try:
        await sequencer.cluster.cluster_id()
        with psycopg.connect(url) as connection:
            plain = connection.execute(
                "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
                " WHERE usename = 'tidelog' AND NOT ssl"
            ).fetchone()
        assert plain == (0,)
    finally:
        await sequencer.close()


async def test_a_server_of_another_ca_is_refused(encrypted_url: str, tmp_path: Path) -> None:
    url = f"{encrypted_url}?sslmode=verify-full&sslrootcert={Authority.make(tmp_path).file}"
    with pytest.raises(SequencerUnavailable):
        await migrate(url, MigrationSettings())


def test_barman_gets_what_the_url_says_of_encryption() -> None:
    url = "postgresql://tidelog@db:5432/tidelog?sslmode=verify-full&sslrootcert=/etc/ca.pem&sslcert=/c&sslkey=/k"
    environment = libpq_environment(url)

    assert environment["PGSSLMODE"] == "verify-full"
    assert environment["PGSSLROOTCERT"] == "/etc/ca.pem"
    assert (environment["PGSSLCERT"], environment["PGSSLKEY"]) == ("/c", "/k")


@pytest.mark.parametrize(
    ("url", "encrypted"),
    [
        ("postgresql://localhost/x", True),
        ("postgresql:///x?host=/var/run/postgresql", True),
        ("postgresql://db/x", False),
        ("postgresql://db/x?sslmode=prefer", False),
        ("postgresql://db/x?sslmode=require", True),
        ("postgresql://db/x?sslmode=verify-full", True),
        ("postgresql://localhost,db/x", False),
    ],
)
def test_a_database_on_another_machine_needs_an_sslmode(url: str, encrypted: bool) -> None:
    assert is_encrypted(url) is encrypted
