"""A certificate's subject is what Java makes of it, letter by letter."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.security.tls.x509 import (
    BadCertificate,
    certificate_of_pem,
    expires_at_s,
    name_of,
    subject_of,
)
from tests.support.certificates import Authority

SUBJECTS = (
    "/CN=alice",
    "/C=DE/ST=Berlin/L=Berlin/O=Example, Inc./OU=Log \\+ Stream/CN=alice",
    '/O=Quotes " and \\\\ backslash/CN=a=b;c<d>e#f',
    "/CN=#leading hash",
    "/CN= two spaces at both ends  ",
    "/CN=   ",
    "/CN=Jürgen Müller 東京 🦊",
    "/DC=org/DC=example/UID=jdoe/CN=John Doe",
    "/CN=mail/emailAddress=who@example.org",
    "/C=DE/OU=one+CN=two+emailAddress=x@example.org/CN=three",
    "/SN=Surname/GN=Given/title=Dr./serialNumber=4711/street=Main Street 1/CN=x",
    "/description=" + "long " * 40 + "/CN=" + "n" * 64,
)


@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
@pytest.mark.parametrize("string_mask", ["utf8only", "default", "nombstr"])
def test_the_subject_is_written_as_java_writes_it(tmp_path: Path, string_mask: str) -> None:
    authority = Authority.make(tmp_path)
    config = tmp_path / "openssl.cnf"
    config.write_text(f"[req]\nstring_mask={string_mask}\ndistinguished_name=dn\n[dn]\n")
    subjects = [one for one in SUBJECTS if string_mask != "nombstr" or "東" not in one]
    files = [authority.issue(one, more=("-config", config)).certificate for one in subjects]

    ours = [subject_of(certificate_of_pem(file.read_bytes())) for file in files]

    assert ours == names_of_java(files)


def names_of_java(files: list[Path]) -> list[str]:
    program = Path(__file__).with_name("PrincipalNames.java")
    printed = subprocess.run(
        ["java", str(program), *map(str, files)], capture_output=True, text=True, timeout=120, check=True
    )
    return [bytes.fromhex(line).decode() for line in printed.stdout.split()]


def test_the_end_of_the_validity_is_read(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    short, long = (
        expires_at_s(certificate_of_pem(authority.issue(days=days).certificate.read_bytes()))
        for days in (1, 365 * 40)
    )

    assert round((long - short) / 86_400) == 365 * 40 - 1


def test_a_file_without_a_certificate_is_refused() -> None:
    with pytest.raises(BadCertificate):
        certificate_of_pem(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_name_or_bad(data: bytes) -> None:
    for read in (name_of, subject_of, expires_at_s):
        with contextlib.suppress(BadCertificate):
            read(data)
