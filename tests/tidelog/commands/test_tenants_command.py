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


def test_rates_of_a_tenant_are_set_and_removed_and_none_is_zero(database_url: str) -> None:
    assert tidelog(database_url, "create", "acme").returncode == 0
    rates = ("produce-bytes-rate", "fetch-bytes-rate", "request-percentage", "mutation-rate", "quotas")
    options = [part for rate in rates for part in (f"--{rate}", "7")]
    limited = tidelog(database_url, "limits", "acme", *options)
    assert limited.returncode == 0, limited.stderr
    refused = tidelog(database_url, "limits", "acme", "--produce-bytes-rate", "0")
    assert refused.returncode != 0
    assert "must be above 0" in refused.stderr
    assert tidelog(database_url, "limits", "acme", "--produce-bytes-rate", "-1").returncode == 0

    [listed] = json.loads(tidelog(database_url, "list", "--json").stdout)
    assert listed["limits"] == {rate.replace("-", "_"): 7 for rate in rates[1:]}
