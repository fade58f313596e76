"""Which pushes are taken: the rules of KIP-714 in virtual time."""

from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from agent.telemetry.instances import ClientInstances, Push, Sample, Subscription, TelemetryFault

ASKED = Subscription(metrics=("a.", "b."), interval_s=10.0, max_bytes=100)
ANN = UUID(int=77)


def some_instances(most: int = 10, series: int = 3) -> ClientInstances:
    return ClientInstances(ASKED, most, series, 1 << 20)


def a_push(
    instance_id: UUID | None = ANN,
    *,
    subscription_id: int | None = None,
    last: bool = False,
    known: bool = True,
    size: int = 10,
) -> Push:
    expected = 0 if instance_id is None else ASKED.id_for(instance_id)
    return Push(
        instance_id=instance_id,
        subscription_id=expected if subscription_id is None else subscription_id,
        is_terminating=last,
        is_known_compression=known,
        size_bytes=size,
    )


def a_sample(name: str, value: float, *, is_delta: bool = False) -> Sample:
    return Sample(series=(name, ()), value=value, is_delta=is_delta)


def test_a_client_without_an_id_is_given_one_and_keeps_it() -> None:
    instances = some_instances()

    first = instances.ask(None, lambda: ANN, 0.0)
    again = instances.ask(ANN, uuid4, 10.0)

    assert (first, again) == (ANN, ANN)
    assert instances.ask(UUID(int=0), lambda: UUID(int=5), 0.0) == UUID(int=5)


def test_asking_and_pushing_more_often_than_the_interval_is_throttled() -> None:
    instances = some_instances()

    assert instances.ask(ANN, uuid4, 0.0) == ANN
    assert instances.ask(ANN, uuid4, 5.0) is TelemetryFault.THROTTLED
    assert instances.check(a_push(), 6.0) is None  # the first push may come at any time
    assert instances.check(a_push(), 12.0) is TelemetryFault.THROTTLED
    assert instances.ask(ANN, uuid4, 12.0) is TelemetryFault.THROTTLED
    assert instances.check(a_push(), 16.0) is None


def test_a_push_of_another_subscription_is_refused_and_the_client_may_ask_at_once() -> None:
    instances = some_instances()
    instances.ask(ANN, uuid4, 0.0)

    assert instances.check(a_push(subscription_id=1), 1.0) is TelemetryFault.UNKNOWN_SUBSCRIPTION
    assert instances.ask(ANN, uuid4, 1.1) == ANN
    assert instances.ask(ANN, uuid4, 1.2) is TelemetryFault.THROTTLED


def test_unreadable_bytes_are_refused() -> None:
    assert some_instances().check(a_push(known=False), 0.0) is TelemetryFault.UNSUPPORTED_COMPRESSION
    assert some_instances().check(a_push(size=101), 0.0) is TelemetryFault.TOO_LARGE
    assert some_instances().check(a_push(None), 0.0) is TelemetryFault.INVALID_REQUEST
    assert some_instances().check(a_push(UUID(int=0)), 0.0) is TelemetryFault.INVALID_REQUEST


def test_a_final_push_may_come_early_and_is_the_last() -> None:
    instances = some_instances()

    assert instances.check(a_push(), 0.0) is None
    assert instances.check(a_push(last=True), 1.0) is None
    assert instances.check(a_push(), 20.0) is TelemetryFault.INVALID_REQUEST


def test_a_push_may_come_to_another_agent_than_the_one_asked() -> None:
    asked, pushed = some_instances(), some_instances()
    asked.ask(ANN, uuid4, 0.0)

    assert pushed.check(a_push(subscription_id=asked.subscription.id_for(ANN)), 0.0) is None


def test_a_push_replaces_the_one_before_and_deltas_add_up() -> None:
    instances = some_instances()

    instances.take(ANN, "ann", [a_sample("gone", 1.0), a_sample("total", 2.0, is_delta=True)], 0.0)
    instances.take(ANN, "ann", [a_sample("total", 3.0, is_delta=True), a_sample("now", 4.0)], 10.0)

    [(instance_id, client_id, values)] = instances.current(10.0)
    assert (instance_id, client_id) == (ANN, "ann")
    assert values == {("total", ()): 5.0, ("now", ()): 4.0}


def test_series_beyond_the_bound_are_dropped_and_counted() -> None:
    instances = some_instances(series=2)

    beyond = instances.take(ANN, "ann", [a_sample(f"m{number}", 0.0) for number in range(5)], 0.0)

    [(_, _, values)] = instances.current(0.0)
    assert (beyond, len(values)) == (3, 2)


def test_silent_instances_are_forgotten_and_sooner_after_a_final_push() -> None:
    instances = ClientInstances(Subscription(metrics=(), interval_s=100.0, max_bytes=1), 10, 3, 1 << 20)
    instances.take(ANN, "ann", [a_sample("m", 1.0)], 0.0)
    instances.take(UUID(int=88), "bob", [a_sample("m", 1.0)], 0.0)
    instances.check(
        Push(
            instance_id=ANN, subscription_id=0, is_terminating=True, is_known_compression=True, size_bytes=0
        ),
        0.0,
    )

    assert [client for _, client, _ in instances.current(61.0)] == ["bob"]
    assert [client for _, client, _ in instances.current(301.0)] == []


@given(
    st.lists(
        st.tuples(st.integers(2, 40), st.sampled_from(["ask", "push", "take"]), st.floats(0, 30)), max_size=60
    )
)
def test_no_more_instances_are_remembered_than_allowed(steps: list[tuple[int, str, float]]) -> None:
    instances, now_s = some_instances(most=5), 0.0
    for number, step, pause_s in steps:
        now_s += pause_s
        instance_id = UUID(int=number)
        if step == "ask":
            instances.ask(instance_id, uuid4, now_s)
        elif step == "push":
            instances.check(a_push(instance_id), now_s)
        else:
            instances.take(instance_id, "client", [a_sample("m", 1.0)], now_s)
        assert len(instances) <= 5


@given(st.uuids())
def test_a_subscription_id_is_a_signed_32_bit_number(instance_id: UUID) -> None:
    assert -(2**31) <= ASKED.id_for(instance_id) < 2**31


def test_values_beyond_the_memory_push_out_those_of_the_most_silent_client() -> None:
    instances, others = (
        ClientInstances(ASKED, 1_000, 10, 100_000),
        [UUID(int=1_000 + number) for number in range(200)],
    )
    for number, instance_id in enumerate(others):
        assert instances.check(a_push(instance_id), float(number)) is None
        instances.take(
            instance_id, "client", [Sample(series=("n" * 5_000, ()), value=1.0, is_delta=False)], number
        )
        assert len(list(instances.current(float(number)))) <= 20

    assert [instance_id for instance_id, _, _ in instances.current(199.0)] == others[-len(instances) :]
