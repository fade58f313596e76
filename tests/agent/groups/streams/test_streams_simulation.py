"""Random lives of a streams group: no task is active twice, whatever is lost, repeated or dead. Once all is
quiet, each task is active.
"""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.groups.events import CommitFence, GroupState
from storage.identifiers import Partition
from tests.agent.groups.streams.streams_world import SESSION_MS, Client, World


def check(world: World, clients: list[Client]) -> None:
    members = world.owners()
    active = Counter(task for client in clients if client.member_id in members for task in client.active)
    assert not active or max(active.values()) == 1, f"active twice: {active}"
    for client in clients:
        for epoch, had in client.had.items():
            fence = world.group.check_commit(client.member_id, None, epoch, world.now_ms)
            if isinstance(fence, CommitFence):
                assert had <= members[client.member_id], f"{client.member_id} commits what it lost"


def act(world: World, clients: list[Client], chance: Random) -> None:
    alive = [client for client in clients if client.alive]
    kind = chance.random()
    if not alive or (kind < 0.08 and len(alive) < 6):
        name = f"m{len(clients)}"
        clients.append(Client(world=world, member_id=name, process_id=f"p{chance.randrange(4)}"))
        return
    client = chance.choice(alive)
    if kind < 0.55:
        if client.answer is None:
            client.beat(times=chance.choice([1, 1, 1, 2]))
        if chance.random() < 0.7:
            client.hear()
    elif kind < 0.75:
        client.reconcile()
    elif kind < 0.82:
        client.lose()
    elif kind < 0.86 and client.epoch > 0:
        client.leave()
    elif kind < 0.89:
        client.alive = False  # It dies, and goes on processing until the group fences it.
    elif kind < 0.93:
        world.restart()
        world.look_again()
    elif kind < 0.96:
        world.pass_time(chance.randrange(SESSION_MS // 2))
    elif kind < 0.98:
        world.topics.pop(chance.choice(["words", "counts"]), None)
        world.look_again()
    else:
        world.pass_time(chance.randrange(2 * SESSION_MS))


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_no_task_is_active_twice_and_all_are_active_in_the_end(seed: int) -> None:
    chance, clients = Random(seed), list[Client]()
    world = World(lines=chance.randrange(1, 7))

    for _ in range(120):
        act(world, clients, chance)
        check(world, clients)

    clients.append(Client(world=world, member_id="last", process_id="last"))
    for _ in range(30):
        for client in clients:
            client.hear()
            if client.alive:
                client.step()
            check(world, clients)
        world.pass_time(1_000)
    alive = [client for client in clients if client.alive]
    tasks = {
        (part, Partition(number)) for part in "01" for number in range(world.topics["lines"].partition_count)
    }
    assert world.group.state is GroupState.STABLE
    assert {task for client in alive for task in client.active} == tasks
    loads = [len(client.active) for client in alive]
    assert max(loads) - min(loads) <= 1
    standbys = Counter((part, n) for each in alive for part, ns in each.told.standby.items() for n in ns)
    several = len({client.process_id for client in alive}) > 1
    assert standbys == ({task: 1 for task in tasks if task[0] == "1"} if several else {})
