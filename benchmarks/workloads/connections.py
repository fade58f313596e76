"""(g): five thousand connections that do nothing and five hundred that each send a record now and then."""

from multiprocessing import Event
from multiprocessing.synchronize import Event as EventOfProcesses

from kio.schema.api_versions.v3.request import ApiVersionsRequest

from benchmarks.figures import Figures
from benchmarks.load.processes import Load, LoadFailed, Window
from benchmarks.load.producers import Pace, Target, paced
from benchmarks.load.wire import Wire
from benchmarks.systems.system import System
from benchmarks.workloads.produce import memory, of_production
from benchmarks.workloads.steady import single_records

IDLE, BUSY, PER_S = 5_000, 500, 2.0
"""PER_S: records of each busy one."""
ENVIRONMENT = (("TIDELOG_MAX_CONNECTIONS", "6000"),)
"""The only setting that the workload changes. The default is 4096."""
_PARTITIONS = 100
_CONNECT_S = 60.0
_WARM_UP_S = 4.0


def measure(system: System, seconds: float) -> Figures:
    topic = system.create_topic(_PARTITIONS)
    frames = single_records(topic, _PARTITIONS, system.target.client_id)
    before_mib, _ = system.meters.server_memory_mib()
    connected, done = Event(), Event()
    with Load(_idle, system.target, connected, done) as idle:
        if not connected.wait(_CONNECT_S):
            raise LoadFailed(f"{IDLE} connections were not open after {_CONNECT_S:.0f} s")
        window = Window.after(_WARM_UP_S, seconds)
        pace = Pace(connections=BUSY, per_s=PER_S, idempotent=system.idempotent, in_flight=5)
        with Load(paced, system.target, frames, window, pace) as busy:
            window.wait_begin()
            before = system.meters.read()
            window.wait_end()
            spent = system.meters.read() - before
            with_connections = memory(system)
            produced = busy.result()
        done.set()
        stayed = idle.result()
    return {
        **of_production(produced, spent, window),
        **with_connections,
        "memory_before_mib": before_mib,
        "idle_connections": float(stayed),
    }


def _idle(target: Target, connected: EventOfProcesses, done: EventOfProcesses) -> int:
    """How many were still open at the end."""
    wires = [_connected(target) for _ in range(IDLE)]
    connected.set()
    done.wait(_CONNECT_S)
    return sum(_is_open(wire) for wire in wires)


def _connected(target: Target) -> Wire:
    """Sends the first requests of every client."""
    wire = Wire.open(target.host, target.port, target.client_id, buffer_bytes=4_096)
    wire.ask(ApiVersionsRequest(client_software_name="benchmark", client_software_version="1"))
    return wire


def _is_open(wire: Wire) -> bool:
    wire.socket.setblocking(False)
    try:
        return wire.socket.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        wire.close()
