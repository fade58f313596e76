"""Which toolchains count as being on this machine."""

import shutil
from pathlib import Path

import pytest

from tests.clients import toolchains
from tests.clients.toolchains import TOOLCHAINS


@pytest.mark.skipif(shutil.which("rustup") is None, reason="cargo does not come from rustup here")
def test_a_rustup_without_a_toolchain_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "RUSTUP_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("RUSTUP_AUTO_INSTALL", "0")
    monkeypatch.setattr(toolchains, "_up_to_date", set())
    monkeypatch.delenv("RUSTUP_TOOLCHAIN", raising=False)

    assert TOOLCHAINS["rust"].missing() == "toolchain for cargo"
