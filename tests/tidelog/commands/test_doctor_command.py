"""`tidelog doctor` with settings that cannot work ends, and says what to correct."""

import asyncio
import os
import subprocess
import sys

import pytest

from tidelog.embedded.s3_endpoint import S3Endpoint


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"S3_SECRET_KEY": "wrong-battery"}, "Check TIDELOG_S3_SECRET_KEY."),
        ({"S3_ACCESS_KEY": "wrong-battery"}, "Check TIDELOG_S3_ACCESS_KEY."),
        (
            {"S3_ACCESS_KEY": None, "S3_SECRET_KEY": None},
            "set TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY",
        ),
        ({"STORE_URL": "s3://bucket?endpoint=http://127.0.0.1:1"}, "Checked TIDELOG_STORE_URL."),
        ({"DATABASE_URL": "postgresql://x:y@127.0.0.1:1/z"}, "is TIDELOG_DATABASE_URL right?"),
    ],
    ids=["secret", "access-key", "no-keys", "store-away", "database-away"],
)
@pytest.mark.usefixtures("sequencer")
async def test_a_wrong_setting_is_named(
    database_url: str, store_url: str, s3_endpoint: S3Endpoint, wrong: dict[str, str | None], fix: str
) -> None:
    settings = {
        "DATABASE_URL": database_url,
        "STORE_URL": store_url,
        "S3_ACCESS_KEY": s3_endpoint.access_key,
        "S3_SECRET_KEY": s3_endpoint.secret_key,
        **wrong,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tidelog", "doctor"],
        env=inherited | {f"TIDELOG_{name}": value for name, value in settings.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert fix in done.stderr
    assert "wrong-battery" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
