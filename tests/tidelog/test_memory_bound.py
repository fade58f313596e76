"""How much memory an agent is said to take."""

from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.object_store import StoreSettings
from tidelog.memory_bound import PROCESS_BYTES, byte_settings, memory_bound_bytes
from tidelog.settings_fit import AllSettings

BOTH = frozenset({"kafka", "jobs"})


def settings(**of_agent: int) -> AllSettings:
    return AllSettings(
        agent=AgentSettings(**of_agent),  # type: ignore[arg-type]
        store=StoreSettings(),
        sequencer=SequencerSettings(),
        ring=CacheRingSettings(),
        read_path=ReadPathSettings(),
        housekeeper=HousekeeperSettings(),
    )


def test_an_agent_with_the_defaults_takes_at_most_a_gibibyte() -> None:
    assert memory_bound_bytes(settings(), BOTH) <= 1 << 30


def test_every_byte_of_a_setting_counts() -> None:
    more = settings(request_memory_bytes=AgentSettings().request_memory_bytes + 1)

    assert memory_bound_bytes(more, BOTH) == memory_bound_bytes(settings(), BOTH) + 1


def test_a_role_that_is_not_played_takes_nothing() -> None:
    assert byte_settings(settings(), frozenset({"jobs"})).keys() == {"merge_memory_bytes", "checkpoint_part_bytes"}
    assert "merge_memory_bytes" not in byte_settings(settings(), frozenset({"kafka"}))
    assert memory_bound_bytes(settings(), frozenset()) == PROCESS_BYTES
