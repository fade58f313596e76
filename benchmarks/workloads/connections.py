"""(g): five thousand connections that do nothing and five hundred that each send a record now and then."""

from kio.schema.api_versions.v3.request import ApiVersionsRequest

from benchmarks.figures import Figures
from benchmarks.load.processes import Load, Window
from benchmarks.load.producers import Pace, Target, paced
from benchmarks.load.wire import Wire
from benchmarks.systems.system import System
from benchmarks.workloads.produce import memory, of_production
from benchmarks.workloads.steady import single_records

IDLE, BUSY, PER_S = 5_000, 500, 2.0
"""PER_S: records of each busy one."""
ENVIRONMENT = (("TIDELOG_MAX_CONNECTIONS", "6000"),)
"""The one setting that the workload asks for; the default is 4096."""
_PARTITIONS = 100
_CONNECT_S = 8.0


def measure(system: System, seconds: float) -> Figures:
    topic = system.create_topic(_PARTITIONS)
    frames = single_records(topic, _PARTITIONS, system.target.client_id)
    before_mib, _ = system.meters.server_memory_mib()
    window = Window.after(_CONNECT_S, seconds)
    pace = Pace(connections=BUSY, per_s=PER_S, idempotent=system.idempotent, in_flight=5)
    with (
        Load(_idle, system.target, window) as idle,
        Load(paced, system.target, frames, window, pace) as busy,
    ):
        window.wait_begin()
        before = system.meters.read()
        window.wait_end()
        spent = system.meters.read() - before
        with_connections = memory(system)
        produced, connected = busy.result(), idle.result()
    return {
        **of_production(produced, spent, window),
        **with_connections,
        "memory_before_mib": before_mib,
        "idle_connections": float(connected),
    }


def _idle(target: Target, window: Window) -> int:
    """How many were open when the window ended."""
    wires = [_connected(target) for _ in range(IDLE)]
    window.wait_end()
    open_ones = 0
    for wire in wires:
        wire.socket.setblocking(False)
        try:
            open_ones += wire.socket.recv(1) != b""
        except BlockingIOError:
            open_ones += 1
        wire.close()
    return open_ones


def _connected(target: Target) -> Wire:
    """Says what every client says first."""
    wire = Wire.open(target.host, target.port, target.client_id, buffer_bytes=4_096)
    wire.ask(ApiVersionsRequest(client_software_name="benchmark", client_software_version="1"))
    return wire
