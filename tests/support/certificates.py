"""Certificate authorities and certificates for tests, made by the `openssl` command."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

_names = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """PEM files."""

    certificate: Path
    key: Path

    def replace(self, other: "Certificate") -> None:
        """Puts another certificate into these files, as an operator or a secret's mount would."""
        self.key.write_bytes(other.key.read_bytes())
        self.certificate.write_bytes(other.certificate.read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A CA that signs certificates."""

    directory: Path
    own: Certificate

    @classmethod
    def make(cls, directory: Path, name: str = "test CA") -> "Authority":
        directory.mkdir(parents=True, exist_ok=True)
        own = Certificate(certificate=directory / "ca.pem", key=directory / "ca.key")
        openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", own.key, "-out", own.certificate, "-days", "30",
            "-subj", f"/CN={name}",
        )  # fmt: skip
        return cls(directory=directory, own=own)

    @property
    def file(self) -> str:
        return str(self.own.certificate)

    def issue(
        self,
        subject: str = "/CN=localhost",
        *,
        hosts: Sequence[str] | None = ("DNS:localhost", "IP:127.0.0.1", "IP:127.0.0.2"),
        days: int = 30,
        more: Sequence[str | Path] = (),
    ) -> Certificate:
        """`subject` in OpenSSL's form; `more` are further options of `openssl req`."""
        number = next(_names)
        made = Certificate(certificate=self.directory / f"{number}.pem", key=self.directory / f"{number}.key")
        openssl(
            "req", "-x509", "-CA", self.own.certificate, "-CAkey", self.own.key, *_NEW_KEY,
            "-keyout", made.key, "-out", made.certificate, "-days", str(days), "-utf8", "-multivalue-rdn",
            "-subj", subject, *([] if hosts is None else ["-addext", f"subjectAltName={','.join(hosts)}"]),
            "-addext", "basicConstraints=critical,CA:FALSE", *more,
        )  # fmt: skip
        return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
