"""Strangers at an agent's peer port cost it little, and keep no peer out."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cache_ring.peers.page_protocol import (
    LENGTH_BYTES,
    MAX_SMALL_FRAME_BYTES,
    PREFACE,
    RangeRefused,
    ReadRange,
    decode,
    encode_read,
    frame_length,
)
from cache_ring.peers.peer_connection import Secrets, open_peer_stream
from sequencer.client import Sequencer
from sequencer.cluster.agents import PeerSecret
from sequencer.settings import SequencerSettings
from storage.identifiers import new_segment_id
from storage.segments.keys import segment_key
from tests.faults.conftest import create_topic
from tests.faults.ledger import Contents, Ledger
from tests.faults.load import Load, LoadSettings
from tests.support.seeds import seeds
from tests.support.stack import HERE
from tidelog.devstack.stack import Stack, StackSettings

STRANGERS = 500
ATTACK_S = 15.0
ALLOWED_GROWTH_BYTES = 64 << 20
PARTITIONS = 4

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stack(module_directory: Path) -> Iterator[Stack]:
    with Stack(StackSettings(environment=HERE, data_dir=module_directory / "stack", zones=("a",))) as running:
        yield running


async def secrets_of(stack: Stack) -> Secrets:
    """The cluster's, as an agent learns them."""
    sequencer = await Sequencer.open(stack.addresses.database_url, SequencerSettings())
    try:
        [row] = await sequencer.database.run("SELECT secrets FROM peer_secrets")
    finally:
        await sequencer.close()
    known = tuple(PeerSecret(value=value) for value in row.secrets)
    return lambda: known


async def is_answered(host: str, port: int, secrets: Secrets) -> bool:
    """Comes as a peer does, and asks for a page."""
    wanted = ReadRange(
        object_key=segment_key("tidelog", new_segment_id()), object_size_bytes=10, start=0, end=10
    )
    reader, writer = await open_peer_stream(host, port, secrets)
    try:
        writer.write(PREFACE + encode_read(wanted))
        while True:
            prefix = await reader.readexactly(LENGTH_BYTES)
            message = decode(await reader.readexactly(frame_length(prefix, MAX_SMALL_FRAME_BYTES)))
            if isinstance(message, RangeRefused):  # first it says that it looks into the store
                return True
    finally:
        writer.transport.abort()


@pytest.mark.timeout(300)
async def test_five_hundred_strangers_that_send_all_they_can_cost_little_and_keep_no_peer_out(
    stack: Stack,
) -> None:
    agent = stack.agent_in("a")
    process, address = psutil.Process(agent.pid), agent.address
    secrets = await secrets_of(stack)
    ledger = Ledger(Contents(seeds(1)[0], PARTITIONS))
    settings = LoadSettings(
        servers=stack.addresses.bootstrap,
        topic=create_topic(stack.addresses.bootstrap, PARTITIONS),
        records_per_s=100.0,
    )
    with Load(settings, ledger) as load:
        await asyncio.to_thread(load.wait_for_acknowledgements, 1, 60.0)
        before = peak = process.memory_info().rss
        cpu_s, waits, refused = sum(process.cpu_times()[:2]), [], 0
        attack = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.strangers", address.host, str(address.peer_port),
            str(STRANGERS), str(ATTACK_S), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert attack.stdout is not None
        assert await asyncio.wait_for(attack.stdout.readline(), 60) == b"all have come\n"
        loop, ending = asyncio.get_running_loop(), asyncio.create_task(attack.wait())
        while not ending.done():
            asked_s = loop.time()
            got_in = False
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(30):
                    got_in = await is_answered(address.host, address.peer_port, secrets)
            if got_in:
                waits.append(loop.time() - asked_s)
            else:
                refused += 1
            peak = max(peak, process.memory_info().rss)
            await asyncio.wait({ending}, timeout=0.1)
        came = int(await attack.stdout.read())
        spent_s = sum(process.cpu_times()[:2]) - cpu_s
        await asyncio.to_thread(load.wait_for_acknowledgements, 10, 60.0)
        await asyncio.to_thread(load.finish, 90.0)

    print(
        f"RSS {before >> 20} MiB, at most {peak >> 20} MiB with {STRANGERS} strangers who came {came} times; "
        f"{len(waits)} peers got in after {1000 * max(waits, default=0):.0f} ms at most, {refused} had to "
        "come again; "
        f"CPU {spent_s:.1f} s in {ATTACK_S:.0f} s"
    )
    assert peak - before < ALLOWED_GROWTH_BYTES
    assert len(waits) > 10 * refused
