"""Shares of quotas."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.quotas.shares import FLOOR, Share, share_of, wanted_part

WISHES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(WISHES)
def test_shares_add_up_to_the_quota(wishes: list[float]) -> None:
    shares = [share_of(wish, wishes[:n] + wishes[n + 1 :]) for n, wish in enumerate(wishes)]
    assert sum(shares) == pytest.approx(1.0)


@given(WISHES)
def test_each_agent_gets_its_wish_or_an_equal_part(wishes: list[float]) -> None:
    for n, wish in enumerate(wishes):
        share = share_of(wish, wishes[:n] + wishes[n + 1 :])
        assert share >= min(wish, 1 / len(wishes)) - 1e-9


def test_agent_whose_clients_waited_gets_what_others_leave() -> None:
    assert share_of(1.0, [wanted_part(0.2, has_waited=False)]) == pytest.approx(0.77)


class _Agent:
    """One agent of a simulated cluster. Its clients demand a part of the quota per round."""

    def __init__(self, agents: int) -> None:
        self.share = Share.of_newcomer(agents)
        self.agents = agents
        self.debt = self.used = self.row = 0.0
        self.row_lives = 0

    def use(self, demand: float, request: float) -> None:
        """A round: clients send whole requests while nothing is owed."""
        self.debt, self.used = self.debt - self.share.now, 0.0
        while self.debt <= 0 and self.used + request <= demand:
            self.debt, self.used = self.debt + request, self.used + request
        self.has_waited = self.used + request <= demand
        self.debt = max(self.debt, -self.share.now)

    def report(self, others: list["_Agent"]) -> None:
        if not self.used and not self.share.wanted:
            return
        self.share.wanted = self.row = wanted_part(
            self.used, has_waited=self.has_waited, debt_rounds=max(0.0, self.debt)
        )
        self.row_lives = 3
        self.share.take([one.row for one in others if one.row_lives > 0], self.agents)


def _used_per_round(agents: list[_Agent], demands: list[float], rounds: int, random: Random) -> list[float]:
    totals = []
    for _ in range(rounds):
        for agent, demand in zip(agents, demands, strict=True):
            agent.use(demand, request=0.1)
        for agent in random.sample(agents, len(agents)):  # reports are not at one time
            agent.row_lives -= 1
            agent.report([one for one in agents if one is not agent])
        totals.append(sum(agent.used for agent in agents))
    return totals


@pytest.mark.parametrize("count", [1, 2, 4, 16])
@pytest.mark.parametrize("seed", range(5))
def test_quota_holds_within_a_tenth_five_rounds_after_the_load_moved(count: int, seed: int) -> None:
    random = Random(seed)
    agents = [_Agent(count) for _ in range(count)]
    phases = [[3.0] * count, [3.0] + [0.0] * (count - 1), [0.0] * (count - 1) + [3.0], [3.0] * count]
    for demands in phases:
        adapting = _used_per_round(agents, demands, 5, random)
        assert sum(adapting) <= 5 * 1.35 + 0.1 * count
        settled = _used_per_round(agents, demands, 40, random)
        assert sum(settled) == pytest.approx(40, rel=0.1)


@given(st.lists(st.floats(0, 3), min_size=2, max_size=8), st.integers(0, 1_000))
def test_shares_of_settled_agents_add_up_to_little_more_than_the_quota(
    demands: list[float], seed: int
) -> None:
    agents = [_Agent(len(demands)) for _ in demands]
    _used_per_round(agents, demands, 10, Random(seed))
    reporting = [agent.share.now for agent in agents if agent.row_lives > 0]
    assert sum(reporting) <= 1 + FLOOR + 1e-6
