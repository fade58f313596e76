"""Settings that span two parts are checked before an agent starts, and the error says what to set."""

import re

import pytest

from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.process.settings_fit import AllSettings, check_settings_fit

MISFITS = {
    "TIDELOG_COORDINATE_MAX_AGE_S": ("300", "TIDELOG_GARBAGE_GRACE_S"),
    "TIDELOG_GARBAGE_GRACE_S": ("120", "TIDELOG_COORDINATE_MAX_AGE_S"),
    "TIDELOG_LATE_WRITE_WINDOW_S": ("128", "TIDELOG_UPLOAD_TIMEOUT_S"),
    "TIDELOG_OUTCOME_RETENTION_S": ("900", "TIDELOG_RESERVATION_LEASE_S"),
    "TIDELOG_DATABASE_ANSWER_TIMEOUT_S": ("15", "TIDELOG_DATABASE_STATEMENT_TIMEOUT_MS"),
    "TIDELOG_LINGER_MS": ("120000", "TIDELOG_MAX_PRODUCE_TIMEOUT_S"),
    "TIDELOG_INTERACTIVE_WAIT_S": ("0.25", "TIDELOG_LINGER_MS"),
    "TIDELOG_MAX_PAGE_BYTES": ("8388607", "TIDELOG_SEGMENT_SIZE_BYTES"),
    "TIDELOG_S3_CALL_TIMEOUT_S": ("71", "TIDELOG_PAGE_LOAD_TIMEOUT_S"),
}


QUICK_RATCHET = {"TIDELOG_OWNERSHIP_RATCHET_S": "30"}
"""So that graces as short as here fit the ownership's, which the housekeeper's settings check themselves."""


def settings_of(variables: dict[str, str]) -> AllSettings:
    return AllSettings.read(Environment({**QUICK_RATCHET, **variables}))


def test_the_defaults_fit() -> None:
    check_settings_fit(settings_of({}))


@pytest.mark.parametrize("variable", MISFITS)
def test_what_does_not_fit_is_named_with_what_it_must_fit(variable: str) -> None:
    value, other = MISFITS[variable]

    with pytest.raises(UserError) as refused:
        check_settings_fit(settings_of({variable: value}))

    assert {variable, other} <= set(re.findall(r"TIDELOG_\w+", str(refused.value)))
    assert value in str(refused.value)


def test_everything_that_does_not_fit_is_told_at_once() -> None:
    misfits = {variable: value for variable, (value, _) in MISFITS.items()}

    with pytest.raises(UserError) as refused:
        check_settings_fit(settings_of(misfits))

    assert set(MISFITS) <= set(re.findall(r"TIDELOG_\w+", str(refused.value)))


ROLE = "arn:aws:iam::000000000000:role/readers"


@pytest.mark.parametrize(
    ("variables", "fix"),
    [
        ({"TIDELOG_ICEBERG_STS_ENDPOINT": "http://minio:9000"}, "TIDELOG_ICEBERG_STS_ROLE_ARN"),
        ({"TIDELOG_ICEBERG_STS_ROLE_ARN": ROLE, "TIDELOG_STORE_URL": "file:///data"}, "names no bucket"),
        ({"TIDELOG_ICEBERG_STS_ROLE_ARN": ROLE, "TIDELOG_STORE_URL": "memory://data"}, "names no bucket"),
        (
            {
                "TIDELOG_ICEBERG_STS_ROLE_ARN": ROLE,
                "TIDELOG_STORE_URL": "s3://logs/a?endpoint=http://minio:9000",
            },
            "TIDELOG_ICEBERG_STS_ENDPOINT, for MinIO to http://minio:9000",
        ),
        ({"TIDELOG_ICEBERG_STS_ROLE_ARN": ROLE, "TIDELOG_STORE_URL": "s3://logs/a*"}, "patterns to STS"),
    ],
)
def test_an_sts_that_could_give_no_keys_is_refused(variables: dict[str, str], fix: str) -> None:
    with pytest.raises(UserError, match=re.escape(fix)):
        check_settings_fit(settings_of(variables))


def test_an_sts_of_aws_or_minio_fits() -> None:
    for variables in (
        {"TIDELOG_STORE_URL": "s3://logs/a"},
        {
            "TIDELOG_STORE_URL": "s3://logs/a?endpoint=http://minio:9000",
            "TIDELOG_ICEBERG_STS_ENDPOINT": "http://minio:9000",
        },
    ):
        check_settings_fit(settings_of({"TIDELOG_ICEBERG_STS_ROLE_ARN": ROLE, **variables}))
