"""How fast one client may do something, without an effect on others."""

from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.client_rates import TokenBuckets


class Quotas(TokenBuckets):
    """Buckets on the test's clock."""

    def __init__(self, *, per_s: float = 10.0, burst: float = 100.0, clients: int = 10) -> None:
        self.now_s = 0.0
        super().__init__(per_s=per_s, burst=burst, most_clients=clients, clock=lambda: self.now_s)


def test_a_client_may_use_its_burst_at_once_and_then_its_rate() -> None:
    quotas = Quotas()
    quotas.take("ann", 100)
    assert quotas.pause_s("ann") == 0.0
    quotas.take("ann", 5)
    assert quotas.pause_s("ann") == 0.5

    quotas.now_s += 0.5

    assert quotas.pause_s("ann") == 0.0


def test_one_large_request_is_let_through_and_paid_for_afterwards() -> None:
    quotas = Quotas()

    quotas.take("ann", 1_000)

    assert quotas.pause_s("ann") == 90.0


def test_clients_do_not_share_a_rate() -> None:
    quotas = Quotas()

    quotas.take("ann", 1_000)

    assert quotas.pause_s("bob") == 0.0


def test_tokens_can_be_given_back() -> None:
    quotas = Quotas()
    quotas.take("ann", 101)

    quotas.take("ann", -101)

    quotas.take("ann", 100)
    assert quotas.pause_s("ann") == 0.0


def test_a_rate_of_zero_is_none() -> None:
    quotas = Quotas(per_s=0.0)

    quotas.take("ann", 1_000_000)

    assert quotas.pause_s("ann") == 0.0


def test_the_clients_that_are_remembered_are_bounded() -> None:
    quotas = Quotas(clients=2)
    for name in ("ann", "bob", "cem"):
        quotas.take(name, 1_000)

    assert [quotas.pause_s(name) > 0 for name in ("ann", "bob", "cem")] == [False, True, True]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=50))
def test_a_client_never_takes_more_than_burst_and_rate_and_one_request_more(
    steps: list[tuple[float, int]],
) -> None:
    quotas = Quotas(per_s=10.0, burst=100.0)
    made, largest = 0, 0
    for pause_s, partitions in steps:
        quotas.now_s += pause_s
        if not quotas.pause_s("ann"):
            quotas.take("ann", partitions)
            made += partitions
            largest = max(largest, partitions)
        assert made <= 100 + 10 * quotas.now_s + largest + 1e-6
