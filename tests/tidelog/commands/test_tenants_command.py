"""`tidelog tenants` against a real Postgres."""

import json
import os
import subprocess
import sys


def tidelog(database_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidelog", "tenants", *arguments],
        env={**os.environ, "TIDELOG_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_tenant_is_made_limited_billed_and_deleted(database_url: str) -> None:
    made = tidelog(database_url, "create", "acme", "--admin", "alice")
    assert made.returncode == 0, made.stderr
    assert "acme~NAME" in made.stdout
    assert tidelog(database_url, "create", "acme").returncode != 0
    assert tidelog(database_url, "create", "../acme").returncode != 0

    limited = tidelog(database_url, "limits", "acme", "--topics", "3", "--retention-ms", "1000")
    assert limited.returncode == 0, limited.stderr
    assert tidelog(database_url, "limits", "acme", "--topics", "-1").returncode == 0
    [listed] = json.loads(tidelog(database_url, "list", "--json").stdout)
    assert listed == {"tenant": "acme", "admins": ["alice"], "limits": {"retention_ms": 1000}}

    [bill] = json.loads(tidelog(database_url, "usage", "--json").stdout)
    assert (bill["tenant"], bill["requests"], bill["bytes_stored"]) == ("acme", 0, 0)
    assert tidelog(database_url, "delete", "acme").returncode == 0
    assert json.loads(tidelog(database_url, "list", "--json").stdout) == []
