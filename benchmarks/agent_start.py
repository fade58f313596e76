"""From `tidelog agent` to the first acknowledged record, and from SIGTERM to the process's end, with the
database and the store up.

The client knows only the topic, and retries every few milliseconds. `python -m benchmarks.agent_start`
starts a stack and prints several rounds.
"""

import argparse
import contextlib
import signal
import tempfile
import time
from pathlib import Path

import confluent_kafka.admin
import psutil

from benchmarks.figures import Figures
from benchmarks.load.batches import full_batches
from benchmarks.load.frames import BadAnswer, ProduceFrame
from benchmarks.load.wire import Wire
from tidelog.devstack.stack import AgentProcess, Stack, StackSettings
from tidelog.process.environment import Environment

_RETRY_S = 0.003
_TIMEOUT_S = 60.0
_TOPIC = "agent-start"


def measure(stack: Stack, index: int = 0) -> Figures:
    """Restarts agent `index`, the only one of its zone."""
    agent = stack.agents[index]
    frame = _prepared(agent)
    pid = agent.pid
    assert pid is not None, "the agent runs"
    cpu_s, started = _cpu_s(pid), time.perf_counter()
    agent.signal(signal.SIGTERM)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        cpu_s_until_now = _cpu_s(pid)
        assert time.perf_counter() - started < _TIMEOUT_S, "the agent does not finish draining"
        time.sleep(_RETRY_S)
    exit_s, exit_cpu_s = time.perf_counter() - started, cpu_s_until_now - cpu_s
    assert agent.join(_TIMEOUT_S)

    started = time.perf_counter()
    pid = stack.spawn(index)
    _until_acknowledged(agent, frame, started + _TIMEOUT_S)
    figures = {
        "start_to_ack_s": time.perf_counter() - started,
        "start_to_ack_cpu_s": _cpu_s(pid),
        "start_rss_mib": psutil.Process(pid).memory_info().rss / (1 << 20),
        "exit_s": exit_s,
        "exit_cpu_s": exit_cpu_s,
    }
    agent.wait_ready(_TIMEOUT_S)
    return {**figures, "start_to_ready_s": time.perf_counter() - started, "ready_cpu_s": _cpu_s(pid)}


def _prepared(agent: AgentProcess) -> ProduceFrame:
    """A record for an existing topic."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": agent.address.bootstrap})
    with contextlib.suppress(confluent_kafka.KafkaException):  # it exists
        admin.create_topics([confluent_kafka.admin.NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(30)
    return ProduceFrame(_TOPIC, full_batches(range(1), 100, 200), f"tidelog_zone={agent.address.zone}")


def _until_acknowledged(agent: AgentProcess, frame: ProduceFrame, deadline: float) -> None:
    while True:
        try:
            wire = Wire.open(agent.address.host, agent.address.kafka_port)
            try:
                frame.stamp(wire.next_id(), int(time.time() * 1000), None, {})
                wire.send(frame.data)
                frame.check(wire.receive())
                return
            finally:
                wire.close()
        except (OSError, BadAnswer):
            assert time.perf_counter() < deadline, "the agent did not start in time"
            time.sleep(_RETRY_S)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-start-", ignore_cleanup_errors=True) as directory,
        Stack(
            StackSettings(
                environment=Environment.of_process(), data_dir=Path(directory), agents=1, zones=("a",)
            )
        ) as stack,
    ):
        for _ in range(rounds):
            print("  ".join(f"{name} {value:.2f}" for name, value in measure(stack).items()))


if __name__ == "__main__":
    main()
