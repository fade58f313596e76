"""HashiCorp Vault for the tests, if `make vault-setup` has built it (`python -m tests.support.vault`).
Otherwise its tests are skipped.

`vault_server/main.go` is Vault's own core, HTTP API and transit engine, with storage in memory. Go fetches
Vault by name. A first build takes nine minutes of CPU, because Vault has 1,600 packages.
"""

import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from storage.encryption.key_wrapping import Vault, key_wrapping
from storage.encryption.settings import EncryptionSettings
from tests.support.certificates import Authority
from tests.support.once import alone
from tests.support.secret_watch import watch
from tests.support.waiting import wait_until
from tidelog.devstack.ports import is_free, picked_ports

SOURCE = Path(__file__).parent / "vault_server"
PROGRAM = Path(__file__).parents[2] / ".cache" / "vault" / "vault-server"
BUILD_TIMEOUT_S = 3_600
POLICY = ("{mount}/encrypt/{key}", "{mount}/decrypt/{key}")
"""What Tidelog's token may update: as in docs/encryption.md."""
_names = count(1)


class VaultServer:
    """A server that is initialized and unsealed, with a transit engine at `transit`."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, authority: Authority) -> None:
        self.process = process
        self.address = address
        self.authority = authority
        context = ssl.create_default_context(cafile=authority.file)
        self._http = httpx.Client(base_url=f"{address}/v1/", verify=context, timeout=60)
        made = self.call("sys/init", {"secret_shares": 1, "secret_threshold": 1}, token="")
        self._unseal_key, self._root = made["keys"][0], made["root_token"]
        watch(self._unseal_key)
        watch(self._root)
        self.unseal()
        self.mount("transit")

    def call(self, path: str, fields: Mapping[str, Any], token: str | None = None) -> dict[str, Any]:
        headers = {"X-Vault-Token": self._root if token is None else token}
        answer = self._http.post(path, json=fields, headers=headers)
        assert answer.is_success, answer.text
        return dict(answer.json()) if answer.content else {}

    def has_key(self, key: str) -> bool:
        return self._http.get(f"transit/keys/{key}", headers={"X-Vault-Token": self._root}).is_success

    def seal(self) -> None:
        self.call("sys/seal", {})

    def unseal(self) -> None:
        self.call("sys/unseal", {"key": self._unseal_key}, token="")
        url = "sys/health"  # 429 or 503 until it is the active server
        wait_until(lambda: self._http.get(url).status_code == 200)

    @contextmanager
    def sealed(self) -> Iterator[None]:
        self.seal()
        try:
            yield
        finally:
            self.unseal()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Connections are accepted, and get no answer."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def mount(self, path: str) -> None:
        self.call(f"sys/mounts/{path}", {"type": "transit"})

    def key(self, mount: str = "transit", **fields: Any) -> str:
        """Makes a key, and returns its name."""
        name = f"key-{next(_names)}"
        self.call(f"{mount}/keys/{name}", fields)
        return name

    def rotate(self, key: str) -> None:
        self.call(f"transit/keys/{key}/rotate", {})

    def token(self, key: str, mount: str = "transit", paths: tuple[str, ...] = POLICY) -> str:
        """Returns a token with Tidelog's policy for a key."""
        name = f"policy-{uuid4()}"
        rules = "\n".join(
            f'path "{path.format(mount=mount, key=key)}" {{ capabilities = ["update"] }}' for path in paths
        )
        self.call(f"sys/policies/acl/{name}", {"policy": rules})
        made = self.call("auth/token/create", {"policies": [name], "no_default_policy": True, "ttl": "1h"})
        found: str = made["auth"]["client_token"]
        watch(found)
        return found

    def revoke(self, token: str) -> None:
        self.call("auth/token/revoke", {"token": token})


@pytest.fixture(scope="session")
def vault_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VaultServer]:
    """The session's Vault. Its tests use keys and tokens that they make."""
    if not PROGRAM.exists():
        pytest.skip("no Vault: `make vault-setup` builds it")
    authority = Authority.make(tmp_path_factory.mktemp("vault") / "ca", name="vault CA")
    own = authority.issue(hosts=["DNS:localhost"])
    with picked_ports(1) as [port]:
        process = subprocess.Popen(
            [
                str(PROGRAM),
                "-listen",
                f"127.0.0.1:{port}",
                "-cert",
                str(own.certificate),
                "-key",
                str(own.key),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: not is_free(port, "127.0.0.1"))
            yield VaultServer(process, f"https://localhost:{port}", authority)
        finally:
            process.kill()
            process.wait()


class VaultKey:
    """A key of Vault, and the file of a token that may use it."""

    def __init__(self, server: VaultServer, folder: Path) -> None:
        self.server = server
        self.key = server.key()
        self.file = folder / "token"
        self.ca_file = folder / "vault-ca.pem"
        self.trust(server.authority)
        self.token = self.renew()

    def trust(self, authority: Authority, comment: str = "") -> None:
        self.ca_file.write_bytes(comment.encode() + authority.own.certificate.read_bytes())

    def renew(self) -> str:
        token = self.server.token(self.key)
        self.file.write_text(token)
        return token

    def may(self, key: str, **given: Any) -> None:
        """Gives the file a token for this key."""
        self.file.write_text(self.server.token(key, **given))

    def given(self) -> dict[str, str]:
        return {
            "encryption_provider": "vault",
            "encryption_key": self.key,
            "encryption_vault_address": self.server.address,
            "encryption_vault_token_file": str(self.file),
            "encryption_vault_ca_file": str(self.ca_file),
        }

    def settings(self, **changed: Any) -> EncryptionSettings:
        return EncryptionSettings.model_validate({"encryption_timeout_s": 20.0, **self.given(), **changed})

    def keys(self, **changed: Any) -> Vault:
        found = key_wrapping(self.settings(**changed))
        assert isinstance(found, Vault)
        return found


@pytest.fixture
def vault(vault_server: VaultServer, tmp_path: Path) -> VaultKey:
    return VaultKey(vault_server, tmp_path)


def build() -> None:
    """Builds the server, or brings it up to date."""
    with alone(PROGRAM):
        subprocess.run(
            ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(PROGRAM), "."],
            cwd=SOURCE,
            timeout=BUILD_TIMEOUT_S,
            check=True,
        )


if __name__ == "__main__":
    if shutil.which("go") is None:
        sys.exit("There is no `go` on PATH; Go 1.25.3 or newer builds Vault.")
    build()
