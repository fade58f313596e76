"""From starting an agent's process to its first acknowledgement, with database and store up."""

from benchmarks import agent_start as measured
from benchmarks.figures import Figures
from benchmarks.systems.system import System


def agent_start(system: System) -> Figures:
    """Measures the first agent, after it was stopped in order."""
    assert system.stack is not None
    figures = measured.measure(system.stack)
    agent = system.stack.agents[0]
    assert agent.pid is not None
    system.meters.pids[agent.address.zone] = agent.pid
    return figures
