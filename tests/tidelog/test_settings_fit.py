"""Settings that span two parts are checked before an agent starts, and the error says what to set."""

import re

import pytest

from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.stores.object_store import StoreSettings
from tidelog.errors import UserError
from tidelog.process.settings_fit import AllSettings, check_settings_fit

MISFITS = {
    "TIDELOG_COORDINATE_MAX_AGE_S": ("300", "TIDELOG_GARBAGE_GRACE_S"),
    "TIDELOG_GARBAGE_GRACE_S": ("120", "TIDELOG_COORDINATE_MAX_AGE_S"),
    "TIDELOG_LATE_WRITE_WINDOW_S": ("128", "TIDELOG_UPLOAD_TIMEOUT_S"),
    "TIDELOG_OUTCOME_RETENTION_S": ("900", "TIDELOG_RESERVATION_LEASE_S"),
    "TIDELOG_DATABASE_ANSWER_TIMEOUT_S": ("15", "TIDELOG_DATABASE_STATEMENT_TIMEOUT_MS"),
    "TIDELOG_LINGER_MS": ("120000", "TIDELOG_MAX_PRODUCE_TIMEOUT_S"),
    "TIDELOG_MAX_PAGE_BYTES": ("8388607", "TIDELOG_SEGMENT_SIZE_BYTES"),
    "TIDELOG_S3_CALL_TIMEOUT_S": ("71", "TIDELOG_PAGE_LOAD_TIMEOUT_S"),
}


@pytest.fixture(autouse=True)
def quick_ratchet(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that graces as short as here fit the ownership's, which the housekeeper's settings check themselves."""
    monkeypatch.setenv("TIDELOG_OWNERSHIP_RATCHET_S", "30")


def from_the_environment() -> AllSettings:
    return AllSettings(
        agent=AgentSettings(),
        store=StoreSettings(),
        sequencer=SequencerSettings(),
        ring=CacheRingSettings(),
        read_path=ReadPathSettings(),
        housekeeper=HousekeeperSettings(),
    )


def test_the_defaults_fit() -> None:
    check_settings_fit(from_the_environment())


@pytest.mark.parametrize("variable", MISFITS)
def test_what_does_not_fit_is_named_with_what_it_must_fit(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, other = MISFITS[variable]
    monkeypatch.setenv(variable, value)

    with pytest.raises(UserError) as refused:
        check_settings_fit(from_the_environment())

    assert {variable, other} <= set(re.findall(r"TIDELOG_\w+", str(refused.value)))
    assert value in str(refused.value)


def test_everything_that_does_not_fit_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, (value, _) in MISFITS.items():
        monkeypatch.setenv(variable, value)

    with pytest.raises(UserError) as refused:
        check_settings_fit(from_the_environment())

    assert set(MISFITS) <= set(re.findall(r"TIDELOG_\w+", str(refused.value)))
