"""A variable that nothing reads is named, with the one that was probably meant."""

import pytest

from agent.settings import AgentSettings
from tidelog.process.settings import ProcessSettings
from tidelog.process.unknown_variables import unknown_variables

MODELS = (AgentSettings, ProcessSettings)


def test_a_misspelt_setting_is_named_with_the_nearest_one() -> None:
    found = unknown_variables({"TIDELOG_LINGER": "5", "TIDELOG_SEGMENT_SIZE_BYTE": "1", "PATH": "/bin"}, MODELS)

    assert found == {
        "TIDELOG_LINGER": ("TIDELOG_LINGER_MS",),
        "TIDELOG_SEGMENT_SIZE_BYTE": ("TIDELOG_SEGMENT_SIZE_BYTES",),
    }


def test_a_name_like_no_other_is_named_alone() -> None:
    assert unknown_variables({"TIDELOG_XQJ": "5"}, MODELS) == {"TIDELOG_XQJ": ()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDELOG_BOOTSTRAP", "localhost:9092"),
        ("TIDELOG_CLUSTER", "tidelog"),
        ("tidelog_linger_ms", "5"),
        ("TIDELOG_HISTORY_SNAPSHOT_GRACE_S", "5"),
        ("TIDELOG_TEST_SEEDS", "5"),
        ("TIDELOG_ZONES", "a,b"),
        ("TIDELOG_SERVICE_HOST", "10.0.0.1"),
        ("TIDELOG_AGENT_SERVICE_PORT_KAFKA", "9092"),
        ("TIDELOG_PORT", "tcp://10.0.0.1:9092"),
        ("TIDELOG_PORT_9092_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_what_others_read_or_make_is_not_named(name: str, value: str) -> None:
    assert unknown_variables({name: value}, MODELS) == {}
