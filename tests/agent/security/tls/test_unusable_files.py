"""An agent whose certificate files cannot be used ends at once, and its error names what to correct."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Certificate, openssl

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate, and its key with a password."""
    folder = tmp_path_factory.mktemp("certificates")
    plain = Authority.make(folder / "ca").issue()
    key = folder / "agent.key"
    openssl("ec", "-in", plain.key, "-aes256", "-passout", f"pass:{PASSWORD}", "-out", key)
    return Certificate(certificate=plain.certificate, key=key)


def started(folder: Path, certificate: Path, key: Path, password: str | None) -> tuple[int, str]:
    """Returns the exit status and what an agent wrote. Its database is away, so nothing else ends it."""
    (folder / "store").mkdir()
    settings = {
        "DATABASE_URL": "postgresql://tidelog@127.0.0.1:1/tidelog",
        "STORE_URL": (folder / "store").as_uri(),
        "KAFKA_PORT": "0",
        "HTTP_PORT": "0",
        "SECURITY_PROTOCOL": "SSL",
        "TLS_CERTIFICATE_FILE": str(certificate),
        "TLS_KEY_FILE": str(key),
        **({} if password is None else {"TLS_KEY_PASSWORD": password}),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "agent"],
        env=os.environ | {f"TIDELOG_{name}": value for name, value in settings.items()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("password", ["wrong-battery", None], ids=["wrong", "none"])
def test_a_wrong_password_of_the_key_ends_the_agent_and_names_its_setting(
    files: Certificate, tmp_path: Path, password: str | None
) -> None:
    status, said = started(tmp_path, files.certificate, files.key, password)

    assert status == 1
    assert "TIDELOG_TLS_KEY_PASSWORD" in said
    assert "wrong-battery" not in said


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_missing_file_ends_the_agent_and_is_named(files: Certificate, tmp_path: Path, missing: str) -> None:
    paths = {"certificate": files.certificate, "key": files.key, missing: tmp_path / "gone.pem"}

    status, said = started(tmp_path, paths["certificate"], paths["key"], PASSWORD)

    assert status == 1
    assert "gone.pem: No such file or directory" in said
    assert "TIDELOG_TLS_KEY_FILE" in said


def test_a_certificate_in_place_of_the_key_ends_the_agent(files: Certificate, tmp_path: Path) -> None:
    status, said = started(tmp_path, files.certificate, files.certificate, None)

    assert status == 1
    assert "is no PEM file of its kind" in said
    assert "TIDELOG_TLS_KEY_PASSWORD" not in said
